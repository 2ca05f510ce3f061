//! What driving, training and the charger do to a vehicle's battery, and whether its computer runs.

use super::super::{World, millis};
use super::Traveller;

impl Traveller {
    /// Begins to charge. With too little in the battery the computer waits until there is enough.
    pub(super) fn plug_in(&mut self, world: &World) {
        self.plugged = true;
        let battery = &world.battery;
        let lacking = battery.min_share - f64::from(self.status.battery);
        if lacking > 0.0 {
            // Without a charger this is infinite, which becomes the end of time.
            let wait = millis(lacking * battery.capacity_kwh / battery.charge_kw * 3_600_000.0);
            self.dark_until = self.dark_until.max(self.now.saturating_add(wait));
        }
    }

    pub(super) fn has_power(&self, world: &World) -> bool {
        let supplied = if self.status.parked {
            self.plugged
        } else {
            f64::from(self.status.battery) >= world.battery.min_share
        };
        supplied && self.now >= self.dark_until
    }

    pub(super) fn drive(&mut self, world: &World, metres: f64) {
        self.use_energy(world, metres / 1000.0 * world.battery.use_kwh_per_km);
    }

    /// Takes energy in kWh from the battery, or gives it.
    pub(super) fn use_energy(&mut self, world: &World, kwh: f64) {
        let left = f64::from(self.status.battery) - kwh / world.battery.capacity_kwh;
        self.status.battery = share(left.clamp(0.0, 1.0));
    }
}

/// A share of the battery, to the precision that is kept.
#[expect(
    clippy::cast_possible_truncation,
    reason = "seven digits of a battery's charge are plenty"
)]
pub(super) fn share(value: f64) -> f32 {
    value as f32
}
