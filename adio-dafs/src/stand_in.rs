//! Until registration policies are in the client library.
pub enum RegistrationPolicy {
    Library,
    Operation,
    Kept,
}
pub trait FileStandIn {
    fn set_registration_policy(&self, _: RegistrationPolicy) {}
}
impl FileStandIn for dafs_client::File {}
pub trait SessionStandIn {
    fn set_registrations_max(&self, _: usize) {}
}
impl SessionStandIn for dafs_client::Session {}
