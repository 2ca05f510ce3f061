//! Whole worlds: a day of a thousand vehicles, and what single settings do to it.

use super::*;
use std::collections::BTreeSet;

const HOUR: Millis = 3_600_000;
const DAY: Millis = 24 * HOUR;

fn spec(text: &str) -> WorldSpec {
    toml::from_str(text).expect("well-formed")
}

fn world(text: &str, vehicles: u32, units: u32) -> World {
    World::new(&spec(text), 7, vehicles, units, None).expect("a good spec")
}

/// A town with everything: a tunnel in the middle, a slow centre, days and nights.
const TOWN: &str = r#"
[activity]
kind = "daily"
[mobility]
dwell_s = 7200.0
[coverage]
radius_m = 600.0
[links.downtown]
up_kbit_s = 500
[[areas]]
kind = "downtown"
x_m = 1000.0
y_m = 1000.0
width_m = 1500.0
height_m = 1500.0
[[areas]]
kind = "tunnel"
x_m = 1500.0
y_m = 0.0
width_m = 700.0
height_m = 500.0
"#;

/// All changes of a vehicle up to `end`, the start first.
fn course(world: &World, vehicle: u32, end: Millis) -> Vec<(Millis, Status)> {
    let mut traveller = world.start(vehicle);
    let mut changes = vec![(0, traveller.status())];
    while let Some(change) = traveller.next_change(world) {
        if change.0 > end {
            break;
        }
        changes.push(change);
    }
    changes
}

/// One number for the changes of many vehicles (FNV-1a over all fields).
fn digest(world: &World, vehicles: impl Iterator<Item = u32>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for vehicle in vehicles {
        for (at, s) in course(world, vehicle, DAY) {
            let flags = u64::from(s.powered) << 9 | u64::from(s.parked) << 8 | u64::from(s.link);
            let unit = s.unit.map_or(u64::MAX, u64::from);
            let place = u64::from(s.x_m.to_bits()) << 32 | u64::from(s.y_m.to_bits());
            for word in [at, flags, unit, place, u64::from(s.battery.to_bits())] {
                hash = (hash ^ word).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
    hash
}

#[test]
fn a_day_of_a_thousand_vehicles_keeps_the_invariants() {
    let world = world(TOWN, 1000, 30);
    let (mut links, mut covered, mut tunnels, mut total) = (BTreeSet::new(), 0, 0, 0);
    for vehicle in 0..1000 {
        let changes = course(&world, vehicle, DAY);
        assert!(changes.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (at, s) in changes {
            let (x, y) = (f64::from(s.x_m), f64::from(s.y_m));
            assert!((0.0..=3800.0).contains(&x) && (0.0..=3800.0).contains(&y));
            assert!((0.0..=1.0).contains(&s.battery));
            let tunnel = (1500.0..=2200.0).contains(&x) && y <= 500.0;
            let downtown = (1000.0..=2500.0).contains(&x) && (1000.0..=2500.0).contains(&y);
            assert_eq!(s.link, u8::from(downtown), "vehicle {vehicle} at {at}");
            if let Some(unit) = s.unit {
                let place = world.units()[unit as usize];
                let (dx, dy) = (f64::from(place.x_m) - x, f64::from(place.y_m) - y);
                assert!(!tunnel && (dx * dx + dy * dy).sqrt() <= 600.001);
                covered += 1;
            }
            tunnels += usize::from(tunnel);
            links.insert(s.link);
            total += 1;
        }
    }
    assert_eq!(links.len(), 2);
    assert!(tunnels > 500, "{tunnels} in the tunnel");
    assert!(covered * 10 > total * 8, "{covered} covered of {total}");
}

#[test]
fn the_same_seed_gives_the_same_day_to_the_bit() {
    let make = |seed| World::new(&spec(TOWN), seed, 100, 30, None).expect("a good spec");
    let first = digest(&make(1), 0..100);
    assert_eq!(first, digest(&make(1), 0..100));
    assert_ne!(first, digest(&make(2), 0..100));
    // The same in debug and release and on every machine; a change of the model changes it.
    assert_eq!(first, 0x8605_9441_fd80_d97e, "{first:#x}");
    // No vehicle's course depends on how many others there are.
    let alone = World::new(&spec(TOWN), 1, 51, 30, None).expect("a good spec");
    assert_eq!(course(&alone, 50, DAY), course(&make(1), 50, DAY));
}

#[test]
fn still_vehicles_never_change() {
    let mut text = TOWN.replace("[mobility]", "[mobility]\nkind = \"still\"");
    text.push_str("[battery]\nmin_share = 0.9\nstart_share = 0.1");
    let world = world(&text, 100, 30);
    for vehicle in 0..100 {
        let mut traveller = world.start(vehicle);
        let status = traveller.status();
        let place = world.units()[vehicle as usize % 30];
        assert!(status.powered && status.parked);
        assert!(status.unit.is_none_or(|unit| unit == vehicle % 30));
        traveller.spend_training(&world, DAY);
        assert_eq!(traveller.next_change(&world), None);
        assert_eq!(traveller.status(), status);
        assert_eq!(traveller.position(&world, DAY), (place.x_m, place.y_m));
    }
    let inside = (0..30).filter(|v| world.start(*v).status().unit.is_none());
    assert!(inside.count() > 0, "a unit in the tunnel serves nobody");
}

#[test]
fn departures_peak_in_the_morning_and_in_the_evening() {
    let world = world(&TOWN.replace("7200.0", "18000.0"), 500, 30);
    let mut by_hour = [0; 24];
    for vehicle in 0..500 {
        for pair in course(&world, vehicle, DAY).windows(2) {
            if pair[0].1.parked && !pair[1].1.parked {
                let hour = (pair[1].0 / HOUR + 6) % 24;
                by_hour[usize::try_from(hour).expect("below 24")] += 1;
            }
        }
    }
    let quiet = by_hour[12];
    assert!(by_hour[8] > 2 * quiet, "{by_hour:?}");
    assert!(by_hour[17] > 2 * quiet, "{by_hour:?}");
    assert_eq!(by_hour[22] + by_hour[23] + by_hour[0] + by_hour[4], 0);
}

#[test]
fn nights_are_spent_at_home_and_power_needs_a_plug() {
    let world = world(TOWN, 500, 30);
    let mut plugged = 0;
    for vehicle in 0..500 {
        // Three in the morning, three nights on.
        let nights: Vec<Status> = [21, 45, 69]
            .map(|hour| {
                let changes = course(&world, vehicle, hour * HOUR);
                changes.last().expect("the start at least").1
            })
            .to_vec();
        assert!(nights.iter().all(|night| night.parked));
        let places: BTreeSet<(u32, u32)> = nights
            .iter()
            .map(|night| (night.x_m.to_bits(), night.y_m.to_bits()))
            .collect();
        assert_eq!(places.len(), 1, "home is one place");
        plugged += nights.iter().filter(|night| night.powered).count();
        for (at, status) in course(&world, vehicle, DAY) {
            let noon = (4 * HOUR..9 * HOUR).contains(&at);
            assert!(!(noon && status.parked && status.powered));
        }
    }
    assert!((950..1150).contains(&plugged), "{plugged} of 1500 nights");
}

#[test]
fn processes_die_on_the_given_share_of_trips() {
    let world = world("[activity]\ndropout = 0.2\ndropout_ms = 20000", 200, 30);
    let (mut trips, mut deaths) = (0, 0);
    for vehicle in 0..200 {
        for pair in course(&world, vehicle, DAY).windows(2) {
            let ((from, before), (to, after)) = (pair[0], pair[1]);
            trips += usize::from(before.parked && !after.parked);
            deaths += usize::from(before.powered && !after.powered);
            if !before.powered && after.powered {
                assert!(to - from <= 30_000, "dead for {} ms", to - from);
            }
        }
    }
    let share = deaths as f64 / trips as f64;
    assert!((0.17..0.23).contains(&share), "{deaths} of {trips}");
}

#[test]
fn an_empty_battery_takes_the_power_until_it_is_charged() {
    let text = "[battery]\ncapacity_kwh = 1.0\nmin_share = 0.5\n[activity]\ndropout = 0.0";
    let world = world(text, 50, 30);
    let (mut dark, mut charged) = (0, 0);
    for vehicle in 0..50 {
        for pair in course(&world, vehicle, DAY).windows(2) {
            let (before, after) = (pair[0].1, pair[1].1);
            if before.powered && !after.powered {
                assert!(after.battery < 0.5);
                dark += 1;
            }
            if !before.powered && after.powered && before.parked && after.parked {
                assert!((after.battery - 0.5).abs() < 0.001, "{}", after.battery);
                charged += 1;
            }
        }
    }
    assert!(dark > 50 && charged > 50, "{dark} dark, {charged} charged");
}

#[test]
fn training_drains_the_battery() {
    let world = world("[battery]\ntrain_kwh_per_s = 1.0", 1, 1);
    let mut traveller = world.start(0);
    let before = traveller.status().battery;
    traveller.spend_training(&world, 6000);
    assert!((before - traveller.status().battery - 0.1).abs() < 1e-6);
    traveller.spend_training(&world, DAY);
    assert!(traveller.status().battery <= 0.0);
    let (_, status) = traveller.next_change(&world).expect("it charges or leaves");
    assert!(status.battery > 0.0);
}

#[test]
fn positions_join_the_changes() {
    let world = world(TOWN, 50, 30);
    for vehicle in 0..50 {
        let mut traveller = world.start(vehicle);
        let mut before = (0, traveller.status());
        while let Some((at, status)) = traveller.next_change(&world) {
            if at > DAY {
                break;
            }
            // A change of power alone may come between crossings.
            let at_crossing =
                before.1.powered == status.powered || status.parked != before.1.parked;
            let there = traveller.position(&world, at);
            assert!(!at_crossing || there == (status.x_m, status.y_m), "at {at}");
            let mut last = traveller.position(&world, before.0);
            for step in 1..=10 {
                let now = before.0 + (at - before.0) * step / 10;
                let next = traveller.position(&world, now);
                let metres = (next.0 - last.0).abs() + (next.1 - last.1).abs();
                let most = ((at - before.0) / 10 + 1) as f32 * 0.019 + 0.1;
                assert!(metres <= most, "{metres} m where {most} are possible");
                last = next;
            }
            before = (at, status);
        }
    }
}

#[test]
fn a_margin_keeps_vehicles_with_their_units() {
    let handovers = |margin: f64| {
        let text = format!("[coverage]\nhandover_margin_m = {margin:?}\nradius_m = 2000.0");
        let world = world(&text, 100, 30);
        let changes = (0..100).map(|v| {
            course(&world, v, DAY)
                .windows(2)
                .filter(|pair| pair[0].1.unit != pair[1].1.unit)
                .count()
        });
        changes.sum::<usize>()
    };
    let (without, with) = (handovers(0.0), handovers(300.0));
    assert!(with < without, "{with} with, {without} without a margin");
}

#[test]
fn a_trace_is_followed() {
    let text = "[mobility]\nkind = \"trace\"\ntrace = \"t.csv\"\n[coverage]\nradius_m = 60.0\n[activity]\ndropout = 0.0";
    let rows = "0,a,0,50\n10,a,100,50\n20,a,200,50\n30,a,200,50\n5,b,10,50\n15,b,90,50\n200,b,190,50\n210,b,200,50\n";
    let read = || Trace::read(rows.as_bytes(), Path::new("t.csv"), 60_000).expect("good rows");
    let make = |vehicles| World::with_trace(&spec(text), 1, vehicles, 2, Some(read()));
    let world = make(2).expect("two vehicles");
    // Units at (50, 25) and (150, 25).
    let got = |vehicle| -> Vec<(Millis, bool, Option<u32>)> {
        course(&world, vehicle, DAY)
            .iter()
            .map(|(at, s)| (*at, s.powered, s.unit))
            .collect()
    };
    assert_eq!(
        got(0),
        [
            (0, true, Some(0)),
            (20_000, true, Some(1)),
            (30_000, false, Some(1))
        ]
    );
    assert_eq!(
        got(1),
        [
            (0, false, Some(0)),
            (5000, true, Some(0)),
            (15_000, false, Some(0)),
            (200_000, true, Some(1)),
            (210_000, false, Some(1))
        ]
    );
    assert_eq!(world.start(0).position(&world, 5000), (50.0, 50.0));
    assert!(matches!(
        make(3),
        Err(WorldError::TooFewTracks { got: 2, wanted: 3 })
    ));
}

#[test]
fn a_trace_without_a_change_gives_control_back() {
    let text = "[mobility]\nkind = \"trace\"\ntrace = \"t.csv\"\n[activity]\ndropout = 0.0";
    let rows: Vec<String> = (0..10_000).map(|i| format!("{i},a,1,1")).collect();
    let rows = rows.join("\n");
    let trace = Trace::read(rows.as_bytes(), Path::new("t.csv"), 60_000).expect("good rows");
    let world = World::with_trace(&spec(text), 1, 1, 1, Some(trace)).expect("one vehicle");
    let times: Vec<Millis> = course(&world, 0, DAY).iter().map(|c| c.0).collect();
    assert_eq!(times, [0, 4_096_000, 8_192_000, 9_999_000]);
}

#[test]
fn what_cannot_be_made_is_refused() {
    let none = World::new(&WorldSpec::default(), 1, 1, 0, None);
    assert!(matches!(none, Err(WorldError::Value { field, .. }) if field == "units"));
    let text = "[mobility]\nkind = \"trace\"\ntrace = \"absent.csv\"";
    let absent = World::new(&spec(text), 1, 1, 1, Some(Path::new("no/such")));
    let path = match absent {
        Err(WorldError::Trace { path, .. }) => path,
        other => panic!("{other:?}"),
    };
    assert_eq!(path, Path::new("no/such/absent.csv"));
}

#[test]
fn computers_and_clocks_follow_their_shares() {
    let world = world("[clocks]\nskew_ms = 200", 10_000, 1);
    let count = |speed: f64| {
        (0..10_000)
            .filter(|v| (world.compute_speed(*v) - speed).abs() < 1e-9)
            .count()
    };
    assert!((5800..6200).contains(&count(1.0)));
    assert!((2800..3200).contains(&count(0.5)));
    assert!((850..1150).contains(&count(0.2)));
    let offsets: Vec<i64> = (0..10_000).map(|v| world.clock_offset_ms(v)).collect();
    assert!(offsets.iter().all(|offset| offset.abs() <= 200));
    assert!(offsets.iter().sum::<i64>().abs() < 10_000 * 5);
    assert_eq!(offsets.iter().max(), Some(&200));
}

#[test]
fn links_are_found_by_name_and_number() {
    let world = world(TOWN, 1, 1);
    assert_eq!(world.link_class("cell"), Some(0));
    assert_eq!(world.link_class("downtown"), Some(1));
    assert_eq!(world.link_class("tunnel"), None);
    assert_eq!(world.link(1).up_kbit_s, 500);
    assert_eq!(world.least_delay_ms(), 30);
}
