//! Topics, and the filters that we subscribe to.

use super::{check, held, limit};
use wayside_domain::ids::{JobId, RoadsideId, VehicleId};
use wayside_proto::topics::{
    ModelKey, Topic, matches, model_filter, roadside_filters, vehicle_filters,
};

/// The input is a topic, or a filter and a topic with a newline between them.
pub(super) fn body(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Some((filter, topic)) = text.split_once('\n') {
        assert_eq!(
            matches(filter, topic),
            by_the_standard(filter, topic),
            "{filter:?} {topic:?}"
        );
    }
    let (topic, most) = held(|| Topic::parse(text));
    check("topic", &topic, most, limit(input, 0));
    if let Ok(topic) = topic {
        assert_eq!(topic.to_string(), text, "one topic has one text");
        subscribed(&topic, text);
    }
}

/// Whoever a topic is for has a filter that matches it.
fn subscribed(topic: &Topic, text: &str) {
    let vehicle_id = VehicleId::new("v").expect("an id");
    let for_vehicle =
        |roadside: &RoadsideId, vehicle: &VehicleId| vehicle_filters(roadside, vehicle);
    let filters = match topic {
        Topic::Round { roadside, .. } | Topic::Job { roadside, .. } => {
            for_vehicle(roadside, &vehicle_id)
        }
        Topic::Receipt {
            roadside, vehicle, ..
        }
        | Topic::Need {
            roadside, vehicle, ..
        }
        | Topic::Control { roadside, vehicle } => for_vehicle(roadside, vehicle),
        Topic::Model {
            roadside, job, key, ..
        } => vec![of_model(roadside, job, *key)],
        Topic::Update { roadside, .. } | Topic::Presence { roadside, .. } => {
            roadside_filters(roadside)
        }
        Topic::Device { .. } | Topic::TwinRefused | Topic::Node { .. } => return,
    };
    let hits = filters.iter().filter(|f| matches(f, text)).count();
    assert_eq!(hits, 1, "{text} is matched by one of {filters:?}");
}

fn of_model(roadside: &RoadsideId, job: &JobId, key: ModelKey) -> String {
    model_filter(roadside, job, key)
}

/// Section 4.7 of MQTT 3.1.1 once more, level by level from the end of the filter.
fn by_the_standard(filter: &str, topic: &str) -> bool {
    let levels: Vec<&str> = filter.split('/').collect();
    let sound = levels.iter().enumerate().all(|(i, level)| {
        !level.contains(['+', '#']) || *level == "+" || (*level == "#" && i + 1 == levels.len())
    });
    if !sound || filter.is_empty() || topic.is_empty() || topic.contains(['+', '#']) {
        return false;
    }
    if topic.starts_with('$') && (levels[0] == "+" || levels[0] == "#") {
        return false;
    }
    let names: Vec<&str> = topic.split('/').collect();
    let fits = |(level, name): (&&str, &&str)| *level == "+" || level == name;
    match levels.split_last() {
        Some((&"#", parents)) => {
            names.len() >= parents.len() && parents.iter().zip(&names).all(fits)
        }
        _ => names.len() == levels.len() && levels.iter().zip(&names).all(fits),
    }
}
