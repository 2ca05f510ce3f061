//! Who may depend on whom: `docs/architecture.md` says it, `cargo metadata` must agree.

use cargo_metadata::{DependencyKind, MetadataCommand, Package};
use std::collections::{BTreeMap, BTreeSet};

/// Ours, with the libraries of ours that each may use.
const ARROWS: [(&str, &[&str]); 9] = [
    ("wayside-domain", &[]),
    ("wayside-extractor", &[]),
    ("wayside-host", &["wayside-domain"]),
    ("wayside-proto", &["wayside-domain"]),
    (
        "edge-client",
        &[
            "wayside-domain",
            "wayside-extractor",
            "wayside-proto",
            "wayside-host",
        ],
    ),
    (
        "roadside-aggregator",
        &["wayside-domain", "wayside-proto", "wayside-host"],
    ),
    (
        "cloud-coordinator",
        &["wayside-domain", "wayside-proto", "wayside-host"],
    ),
    (
        "wayside-sim",
        &[
            "wayside-domain",
            "wayside-proto",
            "wayside-host",
            "edge-client",
            "roadside-aggregator",
            "cloud-coordinator",
        ],
    ),
    ("wayside-tests", &["wayside-domain", "wayside-proto"]),
];

/// What the domain may use of others: nothing that does I/O.
const DOMAIN_USES: [&str; 5] = ["half", "ndarray", "rand", "rand_chacha", "thiserror"];

fn normal_dependencies(package: &Package) -> BTreeSet<&str> {
    let normal = package
        .dependencies
        .iter()
        .filter(|d| d.kind == DependencyKind::Normal);
    normal.map(|d| d.name.as_str()).collect()
}

#[test]
fn crates_depend_on_each_other_as_drawn() {
    let metadata = MetadataCommand::new()
        .no_deps()
        .exec()
        .expect("cargo metadata runs");
    let packages: BTreeMap<&str, &Package> = metadata
        .packages
        .iter()
        .map(|p| (p.name.as_str(), p))
        .collect();
    let drawn: BTreeSet<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        packages.keys().copied().collect::<BTreeSet<_>>(),
        drawn,
        "a crate that is not drawn"
    );
    for (name, allowed) in ARROWS {
        let ours: BTreeSet<&str> = normal_dependencies(packages[name])
            .intersection(&drawn)
            .copied()
            .collect();
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        assert!(
            ours.is_subset(&allowed),
            "{name} uses {:?}",
            ours.difference(&allowed)
        );
    }
    assert_eq!(
        normal_dependencies(packages["wayside-domain"]),
        DOMAIN_USES.into_iter().collect()
    );
}

#[test]
fn the_vehicle_pulls_in_no_grpc() {
    let metadata = MetadataCommand::new().exec().expect("cargo metadata runs");
    let resolve = metadata.resolve.as_ref().expect("a resolved graph");
    let nodes: BTreeMap<_, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let vehicle = metadata
        .packages
        .iter()
        .find(|p| p.name.as_str() == "edge-client")
        .expect("the vehicle");
    let names: BTreeMap<_, _> = metadata.packages.iter().map(|p| (&p.id, p)).collect();
    let (mut seen, mut open) = (BTreeSet::new(), vec![&vehicle.id]);
    while let Some(id) = open.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let package = names[id];
        let node = nodes[id];
        for dependency in &node.deps {
            let normal = dependency
                .dep_kinds
                .iter()
                .any(|kind| kind.kind == DependencyKind::Normal);
            let declared = package
                .dependencies
                .iter()
                .find(|d| d.name == names[&dependency.pkg].name.as_str());
            // An optional dependency is in the workspace's graph because another tier switches it on. The vehicle asks
            // for no feature of ours, so what is optional in our crates is not its.
            let ours = package.source.is_none();
            if normal && !(ours && declared.is_some_and(|d| d.optional)) {
                open.push(&dependency.pkg);
            }
        }
    }
    let heavy: Vec<_> = seen
        .iter()
        .map(|id| names[id].name.as_str())
        .filter(|n| ["tonic", "hyper", "rmqtt"].contains(n))
        .collect();
    assert!(heavy.is_empty(), "the vehicle pulls in {heavy:?}");
}
