use super::*;
use wayside_domain::encoding::CodecSpec;
use wayside_domain::head::Standardisation;
use wayside_domain::ids::RoundId;
use wayside_domain::job::{AggregationSpec, Effort, ModelSpec, RoundSpec, TrainingSpec};
use wayside_domain::time::Timestamp;

fn spec() -> JobSpec {
    JobSpec {
        job: JobId::new("lights").unwrap(),
        model: ModelSpec {
            backbone: None,
            input_height: 128,
            input_width: 64,
            classes: vec!["red".to_owned(), "green".to_owned()],
            standardisation: Standardisation::identity(2),
            network: wayside_domain::network::Network::LinearHead,
            personal: Vec::new(),
        },
        training: TrainingSpec {
            lr: 0.1,
            momentum: 0.0,
            weight_decay: 0.0,
            batch_size: 8,
            effort: Effort::LocalEpochs(1),
            proximal_mu: 0.0,
            class_weights: vec![1.0; 2],
            seed: 1,
        },
        round: RoundSpec {
            fraction_train: 1.0,
            min_vehicles: 1,
            over_selection: 1.0,
            quorum: 0.5,
            round_timeout: std::time::Duration::from_secs(60),
            min_window: std::time::Duration::ZERO,
            edge_rounds: 1,
            max_examples: 100,
            max_norm: 100.0,
            max_norm_ratio: 0.0,
            latency_budget: std::time::Duration::from_millis(500),
        },
        aggregation: AggregationSpec::default(),
        codec: CodecSpec::default(),
    }
}

#[tokio::test]
async fn the_optimizer_state_of_any_length_comes_back_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let versions = Versions::open(folder.path()).unwrap();
    let spec = spec();
    let schema = spec.model.schema().unwrap();
    let parameters = vec![0.5_f32; schema.num_parameters()];
    let (frame, parameters) = codec::encode_model(&schema, &parameters).unwrap();
    // None, momentum's d values, the adaptive ones' 2d.
    for (factor, version) in [(0, 1), (1, 2), (2, 3)] {
        let state = (0..factor * schema.num_parameters()).map(|i| 0.1 / (i as f64 + 3.0));
        let made = NewVersion {
            version: ModelVersion(version),
            parent: ModelVersion(0),
            merge_round: RoundId(1),
            created: Timestamp(1),
            master: vec![0.1; schema.num_parameters()],
            optimizer: state.collect(),
            frame: frame.clone(),
            frame_digest: codec::digest(&frame),
            parameters: parameters.clone(),
            evaluation: None,
            gate: Gate::Released,
            num_examples: 1,
            contributors: 1,
            exact: true,
        };
        let metadata = versions.write(&spec, &schema, &made, None).await.unwrap();
        let read = versions.model(&metadata, &spec.job, &schema).await.unwrap();
        assert_eq!(read, made.model());
    }
}
