use super::*;

const SECOND: u64 = 1000;

#[tokio::test]
async fn a_link_that_acknowledges_nothing_is_given_up() {
    let progress = Progress::new(Instant::now());
    let stuck = |at: u64| {
        progress
            .stuck(at * SECOND, 20 * SECOND, 30 * SECOND)
            .is_some()
    };
    assert!(!stuck(100), "nothing was sent");
    progress.hand(100 * SECOND);
    progress.hand(101 * SECOND);
    assert!(!stuck(130));
    progress.ack(120 * SECOND);
    assert!(!stuck(150), "an acknowledgement was progress");
    assert!(stuck(151));
    progress.ack(151 * SECOND);
    assert!(!stuck(500));
}

#[tokio::test]
async fn an_unanswered_ping_ends_the_link_at_one_and_a_half_keepalives() {
    let progress = Progress::new(Instant::now());
    let stuck = |ms: u64| progress.stuck(ms, 20 * SECOND, 30 * SECOND).is_some();
    progress.last_ping.store(20 * SECOND, Ordering::Relaxed);
    assert!(!stuck(30 * SECOND));
    assert!(stuck(30 * SECOND + 1));
    progress.last_news.store(25 * SECOND, Ordering::Relaxed);
    assert!(!stuck(30 * SECOND + 1), "anything at all is an answer");
}

#[tokio::test]
async fn too_large_a_message_is_refused_before_the_client_sees_it() {
    let (link, mut ends) = LinkHandle::new(1000);
    let refused = link.publish("t".repeat(91), vec![0; 901]).await;
    assert_eq!(
        refused,
        Err(TooLarge {
            got: 1001,
            limit: 1000
        })
    );
    assert_eq!(link.publish("t".repeat(91), vec![0; 900]).await, Ok(true));
    assert!(
        matches!(ends.requests.try_recv(), Ok(Request::Publish { payload, .. }) if payload.len() == 900)
    );
    drop(ends);
    assert_eq!(link.publish("t".into(), vec![]).await, Ok(false));
}

#[tokio::test]
async fn subscriptions_are_kept_for_the_next_connect() {
    let (link, ends) = LinkHandle::new(1000);
    for n in 0..100 {
        link.subscribe(format!("a/{n}"));
    }
    link.unsubscribe("a/7".into());
    assert_eq!(ends.extra.lock().unwrap().len(), 99);
}
