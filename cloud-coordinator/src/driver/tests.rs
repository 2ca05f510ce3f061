use super::*;
use crate::hub::Kept;
use crate::observer::Observer;
use crate::store::{MemoryTable, Store};
use crate::versions::Versions;
use wayside_domain::ids::{Generation, JobId, UpdateId};
use wayside_domain::update::RejectReason;
use wayside_host::clock::Clock;
use wayside_host::shutdown::Shutdown;
use wayside_proto::convert::Hello;

fn features(path: &std::path::Path) {
    use safetensors::{Dtype, tensor::TensorView};
    let values: Vec<u8> = [1.0_f32, 2.0, 4.0, 8.0]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let tensors = [
        (
            "features",
            TensorView::new(Dtype::F32, vec![2, 2], &values).unwrap(),
        ),
        (
            "labels",
            TensorView::new(Dtype::U8, vec![2], &[0, 1]).unwrap(),
        ),
    ];
    std::fs::write(path, safetensors::serialize(tensors, None).unwrap()).unwrap();
}

fn empty(job: &JobId, roadside: &RoadsideId, merge_round: u64) -> PartialAggregate {
    PartialAggregate {
        job: job.clone(),
        roadside: roadside.clone(),
        merge_round: RoundId(merge_round),
        base_version: ModelVersion(0),
        partial_id: UpdateId([5; 16]),
        num_examples: 0,
        sum_frame: Vec::new(),
        contributions: Vec::new(),
        rounds: Vec::new(),
        up_bytes: 1,
        down_bytes: 1,
        vehicles_online: 0,
    }
}

async fn submit(hub: &Hub, partial: PartialAggregate) -> Option<Verdict> {
    let (reply, answer) = oneshot::channel();
    let handle = hub.job(&partial.job).unwrap();
    let command = Command::Submit {
        partial: Box::new(partial),
        bytes: 1,
        reply,
    };
    handle.commands.send(command).await.unwrap();
    answer.await.ok()
}

#[tokio::test]
async fn nothing_is_visible_that_is_not_durable() {
    let folder = tempfile::tempdir().unwrap();
    features(&folder.path().join("c.safetensors"));
    let table = MemoryTable::default();
    let kept = Kept {
        store: Arc::new(Store::new(table.clone())),
        versions: Versions::open(&folder.path().join("versions")).unwrap(),
        jobs_dir: folder.path().join("jobs"),
    };
    std::fs::create_dir(&kept.jobs_dir).unwrap();
    let (shutdown, limits) = (Shutdown::new(), crate::config::LimitsConfig::default());
    let hub = Hub::new(
        limits,
        Clock::system(),
        kept,
        Observer::default(),
        shutdown.clone(),
    );
    let hub = Arc::new(hub.unwrap());
    let text =
        "job = 'lights'\n[model]\nclasses = ['a', 'b']\ncalibration = 'c.safetensors'\n".to_owned();
    table.fail(true);
    assert!(
        create_job(&hub, text.clone(), folder.path().to_owned())
            .await
            .is_err()
    );
    assert!(hub.jobs().is_empty() && hub.plans.borrow().is_empty());
    table.fail(false);
    let job = create_job(&hub, text, folder.path().to_owned())
        .await
        .unwrap();

    let roadside = RoadsideId::new("north").unwrap();
    let hello = Hello {
        roadside: roadside.clone(),
        generation: Generation(1),
        version: "1".to_owned(),
    };
    let _connection = hub.connect(&hello).await.unwrap();
    let mut view = hub.job(&job).unwrap().view;
    view.wait_for(|view| view.progress.merge_round == RoundId(1))
        .await
        .unwrap();

    table.fail(true);
    assert_eq!(
        submit(&hub, empty(&job, &roadside, 1)).await,
        None,
        "no answer"
    );
    table.fail(false);
    let verdict = submit(&hub, empty(&job, &roadside, 1)).await;
    assert_eq!(verdict, Some(Verdict::Rejected(RejectReason::NoExamples)));
    assert_eq!(hub.store.partials(&job, RoundId(1)).unwrap().len(), 1);
    shutdown.trigger();
}
