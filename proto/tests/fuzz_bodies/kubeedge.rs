//! JSON payloads of `KubeEdge`.

use super::{check, heap, held, limit, same, select};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use wayside_proto::kubeedge::{
    Envelope, Heartbeat, MembershipGet, MembershipList, MembershipUpdate, StateResult, StateUpdate,
    TwinDelta, TwinDocument, TwinResult, TwinUpdate, read, write,
};

/// By the first byte of the input, modulo their number. New ones go to the end: the corpus counts on the order.
const KINDS: [fn(&[u8]); 10] = [
    twin_update,
    payload::<TwinUpdate>,
    payload::<TwinResult>,
    payload::<TwinDocument>,
    payload::<TwinDelta>,
    payload::<StateUpdate>,
    payload::<StateResult>,
    payload::<MembershipGet>,
    payload::<MembershipList>,
    payload::<MembershipUpdate>,
];

/// What a byte of the input may cost in a payload that is refused in the end: a map takes room for eleven entries.
const REFUSED_PER_BYTE: u64 = 128;

pub(super) fn body(input: &[u8]) {
    if let Some((kind, bytes)) = select(input) {
        match KINDS.get(kind) {
            Some(body) => body(bytes),
            None => payload::<Envelope>(bytes),
        }
    }
}

/// A client's report, which is checked more closely, and the heartbeat in it.
fn twin_update(bytes: &[u8]) {
    let (result, most) = held(|| TwinUpdate::parse(bytes));
    weigh("TwinUpdate", bytes, &result, most);
    let Ok(update) = &result else { return };
    let written = update.to_json().expect("it has just been checked");
    same("TwinUpdate", update, &TwinUpdate::parse(&written));
    if let Ok(beat) = Heartbeat::from_twin(update) {
        let twin = beat.to_twin(update.event_id.clone());
        let written = twin.to_json().expect("a heartbeat fits the edge's rules");
        let again = TwinUpdate::parse(&written).expect("just written");
        same("Heartbeat", &beat, &Heartbeat::from_twin(&again));
    }
}

fn payload<T: DeserializeOwned + Serialize + Clone + PartialEq + Debug>(bytes: &[u8]) {
    let name = std::any::type_name::<T>();
    let (result, most) = held(|| read::<T>(bytes));
    weigh(name, bytes, &result, most);
    if let Ok(value) = &result {
        let written = write(value).expect("what is read can be written");
        same(name, value, &read::<T>(&written));
    }
}

fn weigh<T: Clone, E: std::fmt::Display>(
    what: &str,
    bytes: &[u8],
    result: &Result<T, E>,
    most: u64,
) {
    let decoded = match result {
        Ok(value) => heap(value),
        Err(_) => bytes.len() as u64 * REFUSED_PER_BYTE / 2,
    };
    check(what, result, most, limit(bytes, decoded));
}
