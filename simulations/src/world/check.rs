//! Whether a [`WorldSpec`] makes sense, field by field.

use std::fmt::Display;

use super::error::WorldError;
use super::spec::{ActivityKind, DEFAULT_LINK, MobilityKind, TUNNEL, WorldSpec};

/// Most link classes that a file may name; with `cell` their numbers still fit a byte.
const MOST_LINKS: usize = 254;

impl WorldSpec {
    /// Checks every field, also those that the chosen kinds do not use.
    ///
    /// # Errors
    /// [`WorldError::Value`] names the first bad field, what it is and what it may be.
    pub fn check(&self) -> Result<(), WorldError> {
        self.check_map()?;
        self.check_links()?;
        self.check_movement()?;
        self.check_vehicles()
    }

    fn check_map(&self) -> Result<(), WorldError> {
        let roads = &self.roads;
        let crossings = u32::from(roads.columns) * u32::from(roads.rows);
        for (field, got) in [("columns", roads.columns), ("rows", roads.rows)] {
            ensure(
                (1..=1000).contains(&got) && crossings >= 2,
                || format!("roads.{field}"),
                got,
                "1 to 1000, with two crossings or more in all",
            )?;
        }
        range("roads.block_m", roads.block_m, 10.0, 10_000.0)?;
        range("roads.speed_m_s", roads.speed_m_s, 0.5, 100.0)?;
        range(
            "roads.arterial_speed_m_s",
            roads.arterial_speed_m_s,
            0.5,
            100.0,
        )?;
        ensure(
            (0.0..roads.speed_m_s.min(roads.arterial_speed_m_s)).contains(&roads.spread_m_s),
            || "roads.spread_m_s".to_owned(),
            roads.spread_m_s,
            "0 to less than speed_m_s and arterial_speed_m_s",
        )?;
        range("coverage.radius_m", self.coverage.radius_m, 0.001, 1e6)?;
        range(
            "coverage.handover_margin_m",
            self.coverage.handover_margin_m,
            0.0,
            1e6,
        )
    }

    fn check_links(&self) -> Result<(), WorldError> {
        ensure(
            self.links.len() <= MOST_LINKS,
            || "links".to_owned(),
            self.links.len(),
            format!("at most {MOST_LINKS} classes"),
        )?;
        for (name, link) in &self.links {
            ensure(
                name != TUNNEL && !name.is_empty(),
                || "links".to_owned(),
                name,
                "a name other than `tunnel`, which means no link",
            )?;
            let counts = [
                ("delay_ms", link.delay_ms, 1, 60_000),
                ("jitter_ms", link.jitter_ms, 0, 60_000),
                ("up_kbit_s", link.up_kbit_s, 1, 100_000_000),
                ("down_kbit_s", link.down_kbit_s, 1, 100_000_000),
            ];
            for (field, got, low, high) in counts {
                ensure(
                    (low..=high).contains(&got),
                    || format!("links.{name}.{field}"),
                    got,
                    format!("{low} to {high}"),
                )?;
            }
            range(&format!("links.{name}.loss"), link.loss, 0.0, 0.9)?;
        }
        self.known_link("coverage.link", &self.coverage.link)?;
        for (i, area) in self.areas.iter().enumerate() {
            if area.kind != TUNNEL {
                self.known_link(&format!("areas[{i}].kind"), &area.kind)?;
            }
            range(&format!("areas[{i}].x_m"), area.x_m, -1e9, 1e9)?;
            range(&format!("areas[{i}].y_m"), area.y_m, -1e9, 1e9)?;
            range(&format!("areas[{i}].width_m"), area.width_m, 0.001, 1e9)?;
            range(&format!("areas[{i}].height_m"), area.height_m, 0.001, 1e9)?;
        }
        Ok(())
    }

    fn check_movement(&self) -> Result<(), WorldError> {
        let mobility = &self.mobility;
        ensure(
            mobility.kind != MobilityKind::Trace || !mobility.trace.as_os_str().is_empty(),
            || "mobility.trace".to_owned(),
            "empty",
            "a CSV file, as mobility.kind is `trace`",
        )?;
        range("mobility.dwell_s", mobility.dwell_s, 1.0, 1e7)?;
        range("mobility.gap_s", mobility.gap_s, 1.0, 1e6)?;
        let activity = &self.activity;
        ensure(
            (0.0..24.0).contains(&activity.start_h),
            || "activity.start_h".to_owned(),
            activity.start_h,
            "0 to less than 24",
        )?;
        range(
            "activity.morning_peak_h",
            activity.morning_peak_h,
            0.0,
            24.0,
        )?;
        range(
            "activity.evening_peak_h",
            activity.evening_peak_h,
            0.0,
            24.0,
        )?;
        range("activity.peak_spread_h", activity.peak_spread_h, 0.0, 6.0)?;
        let spread = activity.peak_spread_h;
        let first = activity.morning_peak_h - spread;
        let last = activity.evening_peak_h + spread;
        let apart = activity.evening_peak_h - activity.morning_peak_h - 2.0 * spread;
        ensure(
            activity.kind == ActivityKind::Always || (first >= 0.0 && last <= 24.0 && apart >= 0.1),
            || "activity.peak_spread_h".to_owned(),
            spread,
            "so small that mornings begin after 0 h, end before evenings begin, and evenings end by 24 h",
        )?;
        range("activity.night_plugged", activity.night_plugged, 0.0, 1.0)?;
        range("activity.dropout", activity.dropout, 0.0, 1.0)?;
        ensure(
            (2..=86_400_000).contains(&activity.dropout_ms),
            || "activity.dropout_ms".to_owned(),
            activity.dropout_ms,
            "2 to 86400000",
        )
    }

    fn check_vehicles(&self) -> Result<(), WorldError> {
        let classes = &self.compute.classes;
        for (i, class) in classes.iter().enumerate() {
            range(
                &format!("compute.classes[{i}].share"),
                class.share,
                0.0,
                1e6,
            )?;
            range(
                &format!("compute.classes[{i}].speed"),
                class.speed,
                0.001,
                1000.0,
            )?;
        }
        let total: f64 = classes.iter().map(|class| class.share).sum();
        ensure(
            total > 0.0,
            || "compute.classes".to_owned(),
            format!("{} with shares of {total} in all", classes.len()),
            "one class or more with a share above 0",
        )?;
        let battery = &self.battery;
        range("battery.capacity_kwh", battery.capacity_kwh, 0.01, 1e4)?;
        range("battery.use_kwh_per_km", battery.use_kwh_per_km, 0.0, 100.0)?;
        range(
            "battery.train_kwh_per_s",
            battery.train_kwh_per_s,
            0.0,
            100.0,
        )?;
        range("battery.charge_kw", battery.charge_kw, 0.0, 1e4)?;
        range("battery.min_share", battery.min_share, 0.0, 1.0)?;
        range("battery.start_share", battery.start_share, 0.0, 1.0)?;
        ensure(
            self.clocks.skew_ms <= 86_400_000,
            || "clocks.skew_ms".to_owned(),
            self.clocks.skew_ms,
            "0 to 86400000",
        )
    }

    fn known_link(&self, field: &str, name: &str) -> Result<(), WorldError> {
        ensure(
            name == DEFAULT_LINK || self.links.contains_key(name),
            || field.to_owned(),
            format!("{name:?}"),
            "a class under `links`, or `cell`; for areas also `tunnel`",
        )
    }
}

/// Refuses a value that is not within `low..=high`, or not a number.
fn range(field: &str, got: f64, low: f64, high: f64) -> Result<(), WorldError> {
    ensure(
        (low..=high).contains(&got),
        || field.to_owned(),
        got,
        format!("{low} to {high}"),
    )
}

fn ensure(
    holds: bool,
    field: impl Fn() -> String,
    got: impl Display,
    allowed: impl Display,
) -> Result<(), WorldError> {
    if holds {
        return Ok(());
    }
    Err(WorldError::Value {
        field: field(),
        got: got.to_string(),
        allowed: allowed.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_work_and_survive_the_file() {
        let spec: WorldSpec = toml::from_str("").expect("every field has a default");
        assert_eq!(spec, WorldSpec::default());
        spec.check().expect("defaults are good");
        let text = toml::to_string(&spec).expect("serialisable");
        assert_eq!(
            toml::from_str::<WorldSpec>(&text).expect("own output"),
            spec
        );
    }

    #[test]
    fn bad_values_are_named() {
        let check = |text: &str, field: &str| {
            let spec: WorldSpec = toml::from_str(text).expect("well-formed");
            match spec.check() {
                Err(WorldError::Value { field: got, .. }) => assert_eq!(got, field, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        };
        check("[roads]\ncolumns = 0", "roads.columns");
        check("[roads]\ncolumns = 1\nrows = 1", "roads.columns");
        check("[roads]\nrows = 1001", "roads.rows");
        check("[roads]\nblock_m = nan", "roads.block_m");
        check("[roads]\nspread_m_s = 9.0", "roads.spread_m_s");
        check("[coverage]\nradius_m = 0.0", "coverage.radius_m");
        check("[coverage]\nlink = \"wifi\"", "coverage.link");
        check("[mobility]\nkind = \"trace\"", "mobility.trace");
        check("[mobility]\ndwell_s = 0.5", "mobility.dwell_s");
        check(
            "[activity]\nkind = \"daily\"\npeak_spread_h = 5.0",
            "activity.peak_spread_h",
        );
        check("[activity]\nstart_h = 24.0", "activity.start_h");
        check("[activity]\ndropout_ms = 1", "activity.dropout_ms");
        check("[compute]\nclasses = []", "compute.classes");
        check(
            "[[compute.classes]]\nshare = 1.0\nspeed = 0.0",
            "compute.classes[0].speed",
        );
        check("[battery]\nmin_share = 1.5", "battery.min_share");
        check("[links.slow]\ndelay_ms = 0", "links.slow.delay_ms");
        check("[links.slow]\nloss = 1.0", "links.slow.loss");
        check("[links.tunnel]", "links");
        check(
            "[[areas]]\nkind = \"slow\"\nx_m = 0.0\ny_m = 0.0\nwidth_m = 1.0\nheight_m = 1.0",
            "areas[0].kind",
        );
        check(
            "[[areas]]\nkind = \"tunnel\"\nx_m = 0.0\ny_m = 0.0\nwidth_m = 0.0\nheight_m = 1.0",
            "areas[0].width_m",
        );
        check("[clocks]\nskew_ms = 86400001", "clocks.skew_ms");
    }

    #[test]
    fn unknown_fields_are_refused() {
        assert!(toml::from_str::<WorldSpec>("[roads]\ncolour = 1").is_err());
        assert!(toml::from_str::<WorldSpec>("[[areas]]\nkind = \"tunnel\"").is_err());
    }
}
