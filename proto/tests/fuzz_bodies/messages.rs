//! Every message and the schema.

use super::{check, heap, held, limit, same, select};
use prost::Message;
use std::fmt::Debug;
use wayside_domain::job::JobSpec;
use wayside_proto::convert::{
    Announcement, Control, Envelope, FetchModel, Hello, ModelPart, ModelPiece, Need,
    PartialAggregate, PartialPart, PartialReceipt, Plan, Presence, Receipt, Update, UpdatePart,
    Wire, decode_schema, encode_schema,
};
use wayside_proto::wire;

/// By the first byte of the input, modulo their number. New ones go to the end: the corpus counts on the order.
const KINDS: [fn(&[u8]); 18] = [
    message::<JobSpec>,
    message::<Presence>,
    message::<Control>,
    message::<Announcement>,
    message::<ModelPart>,
    message::<UpdatePart>,
    message::<Update>,
    message::<Receipt>,
    message::<Need>,
    envelope,
    message::<Hello>,
    message::<Plan>,
    message::<FetchModel>,
    message::<ModelPiece>,
    message::<PartialPart>,
    message::<PartialAggregate>,
    message::<PartialReceipt>,
    schema,
];

/// What a byte of the input may cost in a message that is refused in the end: an empty element of two bytes stands
/// for the largest generated form, and a growing list holds up to three times its elements.
const REFUSED_PER_BYTE: u64 = 3 * (size_of::<wire::JobPlan>() as u64).div_ceil(2);

pub(super) fn body(input: &[u8]) {
    if let Some((kind, bytes)) = select(input) {
        KINDS[kind % KINDS.len()](bytes);
    }
}

fn message<T: Wire + Clone + PartialEq + Debug>(bytes: &[u8]) {
    let (result, most) = held(|| T::decode(bytes));
    let Ok(value) = &result else {
        let limit = limit(bytes, bytes.len() as u64 * REFUSED_PER_BYTE / 2);
        return check(T::NAME, &result, most, limit);
    };
    let generated = held(|| T::Message::from(value)).1;
    let limit = limit(bytes, heap(value) + generated);
    check(T::NAME, &result, most, limit);
    let encoded = value.encode();
    same(T::NAME, value, &T::decode(&encoded));
    let raw = T::Message::decode(encoded.as_slice()).expect("just encoded");
    assert_eq!(raw.encode_to_vec(), encoded, "{}", T::NAME);
}

/// An envelope is opened as well.
fn envelope(bytes: &[u8]) {
    message::<Envelope>(bytes);
    if let Ok(envelope) = Envelope::decode(bytes) {
        let _ = envelope.open::<Hello>(&envelope.resource);
        let _ = envelope.open::<Plan>(&envelope.resource);
    }
}

fn schema(bytes: &[u8]) {
    let (result, most) = held(|| decode_schema(bytes));
    let Ok(schema) = &result else {
        let limit = limit(bytes, bytes.len() as u64 * REFUSED_PER_BYTE / 2);
        return check("Schema", &result, most, limit);
    };
    let generated = held(|| wire::Schema::from(schema)).1;
    check(
        "Schema",
        &result,
        most,
        limit(bytes, heap(schema) + generated),
    );
    same("Schema", schema, &decode_schema(&encode_schema(schema)));
}
