//! The clients of a service other than the proxy, by ids that the loop can use.

use proxy::ConnId;

/// The clients by id, each with what the service keeps of it.
pub struct Sessions<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<usize>,
    len: usize,
}

impl<T> Default for Sessions<T> {
    fn default() -> Self {
        Sessions { places: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<T> Sessions<T> {
    pub fn insert(&mut self, session: T) -> ConnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() - 1
        });
        let (generation, place) = &mut self.places[index];
        *place = Some(session);
        self.len += 1;
        id_of(*generation, index)
    }

    pub fn find(&self, id: ConnId) -> Option<&T> {
        let (generation, place) = self.places.get(id.index())?;
        place.as_ref().filter(|_| id_of(*generation, id.index()) == id)
    }

    pub fn find_mut(&mut self, id: ConnId) -> Option<&mut T> {
        let (generation, place) = self.places.get_mut(id.index())?;
        place.as_mut().filter(|_| id_of(*generation, id.index()) == id)
    }

    pub fn remove(&mut self, id: ConnId) -> Option<T> {
        self.find(id)?;
        let (generation, place) = &mut self.places[id.index()];
        // The event loop keeps half of all generations for itself.
        *generation = (*generation + 1) & (u32::MAX >> 1);
        self.free.push(id.index());
        self.len -= 1;
        place.take()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn ids(&self) -> Vec<ConnId> {
        let living = self.places.iter().enumerate().filter(|(_, (_, place))| place.is_some());
        living.map(|(index, (generation, _))| id_of(*generation, index)).collect()
    }
}

/// Returns the id of the client in that place.
fn id_of(generation: u32, index: usize) -> ConnId {
    ConnId::from_u64(u64::from(generation) << 32 | index as u64)
}
