//! One mutation: what is picked, and what is done to it.

use buttress_ondisk::block::{BlockHead, ChildHead, ItemHead};
use buttress_ondisk::{CHILD_LEN, HEADER_LEN, ITEM_LEN, Key, Superblock};
use zerocopy::IntoBytes;

use super::census::{Census, Class, ItemPlace, Reached};
use super::shape::{Member, members, of_struct};
use super::value::other;
use crate::damage::patient::{Patient, Step};
use crate::damage::{DamageError, Result};
use crate::ops::rng::Rng;

/// Makes one mutation; says which, or `None` when nothing came of it (the number picked was there already, the leaf is
/// full, the key is taken).
pub fn mutate(patient: &Patient, census: &Census, rng: &mut Rng) -> Result<Option<String>> {
    let (name, class) = census.pick(rng);
    let change = Change { patient, census };
    let told = match class {
        Class::Superblock => change.superblock(rng)?,
        Class::Heads(blocks) => {
            let block = &census.blocks()[*rng.pick(blocks)];
            change.at(block, &of_struct::<BlockHead>("head"), 0, rng)?
        }
        Class::Children(places) => {
            let place = rng.pick(places);
            let at = HEADER_LEN + place.slot * CHILD_LEN;
            let block = &census.blocks()[place.block];
            change.at(block, &of_struct::<ChildHead>("child"), at, rng)?
        }
        Class::Items(places) => change.item(*rng.pick(places), rng)?,
    };
    Ok(told.map(|told| format!("{name}: {told}")))
}

struct Change<'a> {
    patient: &'a Patient,
    census: &'a Census,
}

/// What a member was and has become.
fn told(member: &Member, place: &str, old: &[u8], new: &[u8]) -> String {
    let shown = |bytes: &[u8]| match bytes.len() {
        1..=8 => {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word).to_string()
        }
        _ => {
            let from = old.iter().zip(new).position(|(a, b)| a != b).unwrap_or(0);
            let part = bytes.get(from..bytes.len().min(from + 24)).unwrap_or_default();
            let hex: String = part.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("+{from} 0x{hex}")
        }
    };
    format!("{} of {place} from {} to {}", member.name, shown(old), shown(new))
}

impl Change<'_> {
    /// Changes one of the members of a structure that begins `start` bytes into a block.
    fn at(
        &self,
        block: &Reached,
        members: &[Member],
        start: usize,
        rng: &mut Rng,
    ) -> Result<Option<String>> {
        let member = rng.pick(members);
        let range = start + member.at..start + member.at + member.len;
        let bytes = self.patient.block(block.at)?.as_bytes().to_vec();
        let old = bytes[range.clone()].to_vec();
        let Some(new) = other(self.census, &old, member.unit, rng) else { return Ok(None) };
        let place = format!("block {} of tree {}", block.at, block.tree as i64);
        let told = told(member, &place, &old, &new);
        self.patient.edit_block(block.at, |bytes| bytes[range].copy_from_slice(&new))?;
        Ok(Some(told))
    }

    fn superblock(&self, rng: &mut Rng) -> Result<Option<String>> {
        let all = of_struct::<Superblock>("superblock");
        let member = rng.pick(&all);
        let sb = self.patient.volume().superblock();
        let old = sb.as_bytes()[member.at..member.at + member.len].to_vec();
        let part = match member.name.as_str() {
            // What is behind the chunks means nothing.
            "superblock.sys_chunk_array" => 0..sb.sys_chunk_array_size.get() as usize,
            _ => 0..member.len,
        };
        let Some(changed) = other(self.census, &old[part.clone()], member.unit, rng) else {
            return Ok(None);
        };
        let mut new = old.clone();
        new[part].copy_from_slice(&changed);
        self.patient.superblock(|sb| {
            // Each copy has its own address.
            sb.as_mut_bytes()[member.at..member.at + member.len].copy_from_slice(&new);
        })?;
        Ok(Some(told(member, "the superblock", &old, &new)))
    }

    fn item(&self, place: ItemPlace, rng: &mut Rng) -> Result<Option<String>> {
        let block = &self.census.blocks()[place.block];
        let leaf = self.patient.block(block.at)?;
        let (key, data) = leaf.item(place.slot);
        let start = HEADER_LEN + leaf.item_head(place.slot).offset.get() as usize;
        match rng.below(20) {
            0 => {
                let at = HEADER_LEN + place.slot * ITEM_LEN;
                self.at(block, &of_struct::<ItemHead>("item"), at, rng)
            }
            1 => self.rebuilt(block, format!("{key} removed"), |items| {
                items.remove(place.slot);
                true
            }),
            2 | 3 => {
                let Some(new) = self.other_key(&key, rng) else { return Ok(None) };
                self.rebuilt(block, format!("{key} moved to {new}"), |items| {
                    items[place.slot].0 = new;
                    true
                })
            }
            4 => {
                let Some(new) = self.other_key(&key, rng) else { return Ok(None) };
                self.rebuilt(block, format!("{key} doubled as {new}"), |items| {
                    let data = items[place.slot].1.clone();
                    items.push((new, data));
                    true
                })
            }
            5 => self.resized(block, place, &key, data, rng),
            _ => {
                let members = members(&key, data);
                match members.is_empty() {
                    true => Ok(None),
                    false => {
                        let told = self.at(block, &members, start, rng)?;
                        Ok(told.map(|told| format!("{key}, {told}")))
                    }
                }
            }
        }
    }

    /// A key with another number in one of its parts.
    fn other_key(&self, key: &Key, rng: &mut Rng) -> Option<Key> {
        let word = |old: u64, rng: &mut Rng| {
            let new = other(self.census, &old.to_le_bytes(), 8, rng)?;
            Some(u64::from_le_bytes(new.try_into().ok()?))
        };
        Some(match rng.below(4) {
            0 => Key { objectid: word(key.objectid, rng)?, ..*key },
            1 => Key { kind: *other(self.census, &[key.kind], 1, rng)?.first()?, ..*key },
            _ => Key { offset: word(key.offset, rng)?, ..*key },
        })
    }

    /// An item cut off, made longer, or given the data of another one.
    fn resized(
        &self,
        block: &Reached,
        place: ItemPlace,
        key: &Key,
        data: &[u8],
        rng: &mut Rng,
    ) -> Result<Option<String>> {
        let mut new = data.to_vec();
        let how = match rng.below(4) {
            0 => {
                new.truncate(rng.below(data.len() as u64) as usize);
                "cut off"
            }
            1 => {
                new.extend((0..=rng.below(64)).map(|_| rng.next() as u8));
                "made longer"
            }
            2 => {
                new.extend_from_slice(data);
                "written twice"
            }
            _ => {
                let leaf = self.patient.block(block.at)?;
                let alike: Vec<_> =
                    (0..leaf.len()).filter(|it| leaf.key(*it).kind == key.kind).collect();
                new = leaf.data(*rng.pick(&alike)).to_vec();
                "with another's data"
            }
        };
        if new == data {
            return Ok(None);
        }
        let told = format!("{key} {how}, {} to {} bytes", data.len(), new.len());
        self.rebuilt(block, told, |items| {
            items[place.slot].1 = new;
            true
        })
    }

    /// A leaf with other items. The keys above follow its first one.
    fn rebuilt(
        &self,
        block: &Reached,
        told: String,
        edit: impl FnOnce(&mut Vec<(Key, Vec<u8>)>) -> bool,
    ) -> Result<Option<String>> {
        let mut path = Vec::new();
        for (at, slot) in &block.above {
            path.push(Step { block: self.patient.block(*at)?, slot: *slot });
        }
        path.push(Step { block: self.patient.block(block.at)?, slot: 0 });
        let mut fits = true;
        let done = self.patient.edit_path(path, block.tree, |items| {
            fits = edit(items);
            let mut keys: Vec<_> = items.iter().map(|(key, _)| *key).collect();
            keys.sort_unstable();
            fits &= keys.windows(2).all(|pair| pair[0] != pair[1]);
            fits
        });
        match done {
            Ok(true) => {
                Ok(Some(format!("{told} in block {} of tree {}", block.at, block.tree as i64)))
            }
            Ok(false) | Err(DamageError::Full { .. } | DamageError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
