//! A coordinator over real gRPC: plans, models, partial aggregates, operators' calls, restarts.

mod common;

use std::time::Duration;

use cloud_coordinator::admin_client::Which;
use cloud_coordinator::{Config, Event};
use common::{Cloud, LIMIT, Unit, WHEN_COMPLETE, config, copy_folder, create, step};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wayside_domain::ids::{ModelVersion, RoundId, UpdateId};
use wayside_domain::time::Timestamp;
use wayside_domain::update::{RejectReason, Verdict};
use wayside_host::clock::ManualClock;
use wayside_host::exit::Exit;
use wayside_proto::codec;

#[tokio::test(flavor = "multi_thread")]
async fn from_hello_to_a_new_version() {
    let dir = tempfile::tempdir().unwrap();
    let cloud = Cloud::start(dir.path()).await;
    let mut unit = Unit::connect(&cloud, "north").await;
    create(&cloud, dir.path(), "lights", WHEN_COMPLETE).await;
    let plan = unit.plan("lights", |plan| !plan.paused).await;
    assert_eq!(
        (plan.merge_round, plan.base_version),
        (RoundId(1), ModelVersion(0))
    );

    let frame = unit.fetch(&plan, 0).await.unwrap();
    assert_eq!(
        (codec::digest(&frame), frame.len() as u64),
        (plan.model, plan.model_bytes)
    );
    assert_eq!(unit.fetch(&plan, 7).await.unwrap(), frame[7..]);
    assert!(
        unit.fetch(&plan, plan.model_bytes)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        unit.fetch(&plan, plan.model_bytes + 1)
            .await
            .unwrap_err()
            .code(),
        tonic::Code::OutOfRange
    );

    let partial = unit.partial(&plan, 1, &step(1.0));
    let receipt = unit.submit(&partial).await;
    assert_eq!(receipt.verdict, Verdict::Accepted);
    assert_eq!(
        (receipt.current_merge_round, receipt.current_version),
        (RoundId(2), ModelVersion(1))
    );
    assert_eq!(
        unit.submit(&partial).await.verdict,
        Verdict::Accepted,
        "the same receipt"
    );
    let next = unit
        .plan("lights", |plan| plan.base_version == ModelVersion(1))
        .await;
    assert_eq!(next.exponents, [2, 0], "four times the largest mean delta");
    let frame = unit.fetch(&next, 0).await.unwrap();
    assert_eq!(codec::digest(&frame), next.model);

    let mut admin = cloud.admin().await;
    let job = admin.show_job("").await.unwrap();
    assert_eq!(
        (job.state.as_str(), job.merge_round, job.released_version),
        ("running", 2, 1)
    );
    let models = admin.list_models("lights").await.unwrap();
    assert_eq!(models.len(), 2);
    assert!(models[1].current && models[1].released && models[1].evaluated && models[1].exact);
    assert!((models[1].accuracy - 1.0).abs() < 1e-9);
    assert_eq!(
        (
            models[1].num_examples,
            models[1].contributors,
            models[1].parent
        ),
        (10, 1, 0)
    );

    let rounds = admin.list_rounds("").await.unwrap();
    assert_eq!(
        rounds
            .iter()
            .map(|r| (r.merge_round, r.new_version))
            .collect::<Vec<_>>(),
        [(1, 1), (2, 0)]
    );
    assert_eq!(
        (rounds[0].accepted, rounds[0].up_bytes, rounds[0].down_bytes),
        (1, 100, 200)
    );
    let explained = admin.explain_round("", 1).await.unwrap();
    assert_eq!(explained.roadsides.len(), 1);
    assert_eq!(
        explained.roadsides[0].contributions[0].vehicle,
        "car-of-north"
    );
    assert!(explained.roadsides[0].contributions[0].l2_norm > 1.0);
    let silent = admin.explain_round("", 2).await.unwrap();
    assert_eq!(
        (
            silent.roadsides[0].roadside.as_str(),
            silent.roadsides[0].verdict
        ),
        ("north", None)
    );
    assert_eq!(
        admin.explain_round("", 9).await.unwrap_err().exit,
        Exit::Failed
    );
    assert_eq!(
        admin
            .show_model("", Which::Version(9))
            .await
            .unwrap_err()
            .exit,
        Exit::ModelVersion
    );
    assert_eq!(admin.show_job("nix").await.unwrap_err().exit, Exit::Job);

    let out = dir.path().join("out.safetensors");
    admin
        .export_model_to("", Which::Latest, &out)
        .await
        .unwrap();
    let bytes = std::fs::read(&out).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("head-weight").unwrap().shape(), [2, 2]);
    let schema = plan.spec.model.schema().unwrap();
    let released = codec::decode_model(&frame, &schema).unwrap();
    let exported: Vec<f32> = ["head-weight", "head-bias"]
        .iter()
        .flat_map(|name| {
            file.tensor(name)
                .unwrap()
                .data()
                .as_chunks::<4>()
                .0
                .to_vec()
        })
        .map(f32::from_le_bytes)
        .collect();
    assert_eq!(exported, released, "what people get is what the fleet has");

    drop(unit);
    cloud
        .wait(|event| matches!(event, Event::RoadsideLost { .. }).then_some(()))
        .await;
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_goes_on_with_the_same_round() {
    let dir = tempfile::tempdir().unwrap();
    let cloud = Cloud::start(dir.path()).await;
    let (mut north, mut south) = (
        Unit::connect(&cloud, "north").await,
        Unit::connect(&cloud, "south").await,
    );
    create(
        &cloud,
        dir.path(),
        "lights",
        &format!("{WHEN_COMPLETE}[merge]\nmin_roadsides = 2\nquorum = 1.0\n"),
    )
    .await;
    let plan = north.plan("lights", |plan| !plan.paused).await;
    let one = north.partial(&plan, 1, &step(1.0));
    assert_eq!(north.submit(&one).await.verdict, Verdict::Accepted);
    let bad = common_bad(&south, &plan);
    assert_eq!(
        south.submit(&bad).await.verdict,
        Verdict::Rejected(RejectReason::Inconsistent)
    );
    std::fs::remove_file(dir.path().join("holdback.safetensors")).unwrap();
    cloud.stop().await;

    let cloud = Cloud::start(dir.path()).await;
    let mut south = Unit::connect(&cloud, "south").await;
    let again = south.plan("lights", |_| true).await;
    assert_eq!(again, plan, "the same round, scales, bound and window");
    assert_eq!(
        south.submit(&bad).await.verdict,
        Verdict::Rejected(RejectReason::Inconsistent)
    );
    let mut north = Unit::connect(&cloud, "north").await;
    assert_eq!(
        north.submit(&one).await.verdict,
        Verdict::Accepted,
        "counted before, the same receipt"
    );
    let two = south.partial(&plan, 2, &step(0.5));
    let receipt = south.submit(&two).await;
    assert_eq!(
        (receipt.verdict, receipt.current_version),
        (Verdict::Accepted, ModelVersion(1))
    );
    let made = cloud
        .admin()
        .await
        .show_model("", Which::Latest)
        .await
        .unwrap();
    assert_eq!(
        (made.num_examples, made.contributors),
        (20, 2),
        "each counted once"
    );
    cloud.stop().await;
}

fn common_bad(
    unit: &Unit,
    plan: &wayside_proto::convert::JobPlan,
) -> wayside_proto::convert::PartialAggregate {
    let mut bad = unit.partial(plan, 9, &step(1.0));
    bad.num_examples = 11;
    bad
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_chained_files_and_rollback_goes_back() {
    let dir = tempfile::tempdir().unwrap();
    let cloud = Cloud::start(dir.path()).await;
    create(&cloud, dir.path(), "lights", WHEN_COMPLETE).await;
    let mut unit = Unit::connect(&cloud, "north").await;
    for (id, factor) in [(1, 1.0), (2, 0.5), (3, -60.0)] {
        let plan = unit
            .plan("lights", |plan| plan.merge_round == RoundId(id.into()))
            .await;
        let partial = unit.partial(&plan, id, &step(factor));
        assert_eq!(unit.submit(&partial).await.verdict, Verdict::Accepted);
    }
    let mut admin = cloud.admin().await;
    let models = admin.list_models("").await.unwrap();
    assert_eq!(
        models.iter().map(|m| m.released).collect::<Vec<_>>(),
        [true, true, true, false],
        "the gate"
    );
    assert!(models[3].gate.contains("below the released version's"));
    assert!(models[2].current);

    let folder = dir.path().join("state/versions/lights");
    let mut parent = String::new();
    for version in 0..3 {
        let text =
            std::fs::read_to_string(folder.join(format!("v{version}/metadata.json"))).unwrap();
        let metadata: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(metadata["parent_commit"], parent.as_str());
        parent = metadata["last_commit"].as_str().unwrap().to_owned();
        assert_eq!(metadata["completed_rounds"], version);
        assert!(metadata["val_accuracy"].is_number());
        for (name, digest) in metadata["digests"].as_object().unwrap() {
            let bytes = std::fs::read(folder.join(format!("v{version}/{name}"))).unwrap();
            assert_eq!(codec::digest(&bytes).to_hex(), digest.as_str().unwrap());
            let uri = metadata["uris"][name].as_str().unwrap();
            assert!(
                std::path::Path::new(uri.strip_prefix("file://").unwrap()).is_file(),
                "{uri}"
            );
        }
    }

    assert_eq!(
        admin.rollback("", 3).await.unwrap_err().exit,
        Exit::ModelVersion,
        "kept back"
    );
    assert_eq!(
        admin.rollback("", 8).await.unwrap_err().exit,
        Exit::ModelVersion,
        "unknown"
    );
    assert!(admin.rollback("", 1).await.unwrap().current);
    let plan = unit
        .plan("lights", |plan| plan.base_version == ModelVersion(1))
        .await;
    let partial = unit.partial(&plan, 4, &step(0.1));
    assert_eq!(unit.submit(&partial).await.verdict, Verdict::Accepted);
    let newest = admin.show_model("", Which::Latest).await.unwrap();
    assert_eq!((newest.version, newest.parent), (4, 1));
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleep_of_days_is_caught_up_with_once() {
    let dir = tempfile::tempdir().unwrap();
    let clock = ManualClock::new(Timestamp(1_767_225_600_000));
    let cloud = Cloud::start_with(config(dir.path()), clock.clock()).await;
    create(&cloud, dir.path(), "lights", "").await;
    let mut unit = Unit::connect(&cloud, "north").await;
    let plan = unit.plan("lights", |plan| !plan.paused).await;
    let partial = unit.partial(&plan, 1, &step(1.0));
    assert_eq!(unit.submit(&partial).await.verdict, Verdict::Accepted);
    clock.advance(Duration::from_secs(10 * 86_400));
    let plan = unit
        .plan("lights", |plan| plan.merge_round == RoundId(2))
        .await;
    assert_eq!(plan.base_version, ModelVersion(1));
    assert_eq!(
        plan.window_ends,
        Timestamp(1_767_225_600_000 + 11 * 86_400_000)
    );
    let rounds = cloud.admin().await.list_rounds("").await.unwrap();
    assert_eq!(rounds.len(), 2);
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_answered_and_harms_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let mut limited: Config = config(dir.path());
    limited.limits.max_partial_bytes = 65_536;
    let cloud = Cloud::start_with(limited, wayside_host::clock::Clock::system()).await;
    create(&cloud, dir.path(), "lights", WHEN_COMPLETE).await;
    let mut unit = Unit::connect(&cloud, "north").await;
    let plan = unit.plan("lights", |plan| !plan.paused).await;
    let partial = unit.partial(&plan, 1, &step(1.0));

    let status = unit
        .submit_changed(&partial, |parts| parts[1].data[0] ^= 1)
        .await
        .unwrap_err();
    assert_eq!(status.code(), tonic::Code::DataLoss);
    let status = unit
        .submit_changed(&partial, |parts| parts.swap(0, 1))
        .await
        .unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    let status = unit
        .submit_changed(&partial, |parts| parts[0].partial_id.truncate(3))
        .await
        .unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    let huge = |parts: &mut Vec<wayside_proto::wire::PartialPart>| parts[0].total_bytes = u64::MAX;
    let receipt = unit.submit_changed(&partial, huge).await.unwrap();
    assert_eq!(receipt.verdict, Verdict::Rejected(RejectReason::TooLarge));
    let mut other = partial.clone();
    other.job = wayside_domain::ids::JobId::new("other").unwrap();
    assert_eq!(
        unit.submit(&other).await.verdict,
        Verdict::Rejected(RejectReason::UnknownJob)
    );
    let mut foreign = partial.clone();
    foreign.partial_id = UpdateId([7; 16]);
    let own_id = |parts: &mut Vec<wayside_proto::wire::PartialPart>| {
        for part in parts {
            part.partial_id = vec![8; 16];
        }
    };
    let receipt = unit.submit_changed(&foreign, own_id).await.unwrap();
    assert_eq!(
        receipt.verdict,
        Verdict::Rejected(RejectReason::Inconsistent)
    );

    // Bytes that are no gRPC end their own connection.
    let address = cloud.address.strip_prefix("http://").unwrap();
    for garbage in [
        b"GET / HTTP/1.0\r\n\r\n".to_vec(),
        (0..=255_u8)
            .cycle()
            .take(1024)
            .map(|i| i.wrapping_mul(89))
            .collect(),
    ] {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(&garbage).await.unwrap();
        let mut answer = Vec::new();
        let reading = tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer));
        let _ = reading.await.expect("the connection is dropped");
    }
    assert_eq!(
        unit.submit(&partial).await.verdict,
        Verdict::Accepted,
        "all of it left no trace"
    );

    let mut admin = cloud.admin().await;
    let text = std::fs::read_to_string(dir.path().join("lights.toml")).unwrap();
    assert_eq!(
        admin.create_job(text, dir.path()).await.unwrap_err().exit,
        Exit::Job,
        "exists"
    );
    let error = admin
        .create_job("job = 1".to_owned(), dir.path())
        .await
        .unwrap_err();
    assert_eq!(error.exit, Exit::ConfigInvalid);
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_connection_replaces_the_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let cloud = Cloud::start(dir.path()).await;
    create(&cloud, dir.path(), "lights", "").await;
    let _first = Unit::connect(&cloud, "north").await;
    let mut second = Unit::connect(&cloud, "north").await;
    second.plan("lights", |plan| !plan.paused).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let lost = cloud
        .events
        .lock()
        .unwrap()
        .iter()
        .any(|event| matches!(event, Event::RoadsideLost { .. }));
    assert!(!lost, "the unit is still there");
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_store_is_refilled_from_the_versions() {
    let dir = tempfile::tempdir().unwrap();
    let cloud = Cloud::start(dir.path()).await;
    create(&cloud, dir.path(), "lights", WHEN_COMPLETE).await;
    let mut unit = Unit::connect(&cloud, "north").await;
    let plan = unit.plan("lights", |plan| !plan.paused).await;
    let partial = unit.partial(&plan, 1, &step(1.0));
    unit.submit(&partial).await;
    cloud.stop().await;

    let db = dir.path().join("state/store/db");
    let length = std::fs::metadata(&db).unwrap().len();
    std::fs::write(&db, vec![0xA5; usize::try_from(length).unwrap()]).unwrap();
    let cloud = Cloud::start(dir.path()).await;
    let mut unit = Unit::connect(&cloud, "north").await;
    let plan = unit.plan("lights", |plan| !plan.paused).await;
    assert_eq!(plan.base_version, ModelVersion(1));
    assert!(plan.merge_round > RoundId(2), "no number is used twice");
    let partial = unit.partial(&plan, 2, &step(0.1));
    let receipt = unit.submit(&partial).await;
    assert_eq!(
        (receipt.verdict, receipt.current_version),
        (Verdict::Accepted, ModelVersion(2))
    );
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_version_is_gone_on_from() {
    let dir = tempfile::tempdir().unwrap();
    let cloud = Cloud::start(dir.path()).await;
    create(&cloud, dir.path(), "lights", WHEN_COMPLETE).await;
    let mut unit = Unit::connect(&cloud, "north").await;
    for id in 1..3 {
        let plan = unit
            .plan("lights", |plan| plan.merge_round == RoundId(id.into()))
            .await;
        let partial = unit.partial(&plan, id, &step(0.5));
        unit.submit(&partial).await;
    }
    cloud.stop().await;
    let versions = dir.path().join("state/versions/lights");
    std::fs::write(versions.join("v2/state.safetensors"), b"").unwrap();
    let cloud = Cloud::start(dir.path()).await;
    let mut unit = Unit::connect(&cloud, "north").await;
    let plan = unit.plan("lights", |_| true).await;
    assert_eq!(plan.base_version, ModelVersion(2), "its frame stands in");
    cloud.stop().await;
    std::fs::write(versions.join("v2/model.frame"), [0; 40]).unwrap();
    let cloud = Cloud::start(dir.path()).await;
    let mut unit = Unit::connect(&cloud, "north").await;
    let plan = unit.plan("lights", |plan| !plan.paused).await;
    assert_eq!(plan.base_version, ModelVersion(1), "the version before it");
    assert!(unit.fetch(&plan, 0).await.is_ok());
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_came_up_older_than_it_was_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let cloud = Cloud::start(dir.path()).await;
    create(&cloud, dir.path(), "lights", WHEN_COMPLETE).await;
    cloud.stop().await;
    let (store, older) = (dir.path().join("state/store"), dir.path().join("older"));
    copy_folder(&store, &older);
    let cloud = Cloud::start(dir.path()).await;
    let mut unit = Unit::connect(&cloud, "north").await;
    for id in 1..4 {
        let plan = unit
            .plan("lights", |plan| plan.merge_round == RoundId(id.into()))
            .await;
        let partial = unit.partial(&plan, id, &step(0.5));
        unit.submit(&partial).await;
    }
    cloud.stop().await;
    std::fs::remove_dir_all(&store).unwrap();
    copy_folder(&older, &store);
    let cloud = Cloud::start(dir.path()).await;
    let mut unit = Unit::connect(&cloud, "north").await;
    let plan = unit.plan("lights", |plan| !plan.paused).await;
    assert_eq!(plan.base_version, ModelVersion(3));
    assert!(plan.merge_round > RoundId(4), "no number is used twice");
    cloud.stop().await;
}
