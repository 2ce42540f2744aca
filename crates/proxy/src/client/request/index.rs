//! A pending request by its index.

use super::{PendingRequest, PendingRequests};
use crate::base::part::RequestId;

impl std::ops::Index<RequestId> for PendingRequests {
    type Output = PendingRequest;
    fn index(&self, id: RequestId) -> &PendingRequest {
        &self.requests[id as usize]
    }
}

impl std::ops::IndexMut<RequestId> for PendingRequests {
    fn index_mut(&mut self, id: RequestId) -> &mut PendingRequest {
        &mut self.requests[id as usize]
    }
}
