//! What client and server agree on, field by field.

use std::sync::Arc;

use dafs_proto::transport::sim::{FaultPlan, NodeId};
use dafs_proto::wire::Features;
use dafs_tests::raw::{Raw, introduction};
use dafs_tests::sim::{PORT, ScriptedWorld};

// [WIRE-9]
#[test]
fn field_of_a_feature_is_sent_only_where_that_feature_holds() {
    for (features, is_sent) in [(Features::all(), true), (Features::all() - Features::LISTS, false)] {
        let world = ScriptedWorld::with(1, FaultPlan::calm(), features);
        let mut raw = Raw::connect_from(Arc::new(world.net().domain(NodeId(7))), &PORT);
        let welcome = raw.shake(&introduction(&PORT, 4, None)).unwrap();
        // It is alone.
        assert_eq!(welcome.features, (features - Features::CLUSTER).bits());
        assert_eq!(welcome.cluster, None);
        assert_eq!(welcome.gather.is_some(), is_sent, "{features:?}");
    }
}
