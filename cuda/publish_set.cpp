// SPDX-License-Identifier: Apache-2.0
// Many regions become one of the broker: their allocations are its chunks, one behind the other, and its manifest names
// the tensors in all of them. The broker gives it its name when the last chunk has come. So a reader finds all of one
// generation, or the one before, or none, and needs one import for it.
#include <new>
#include <set>

#include "cuda/leaving.hpp"
#include "cuda/manifest_file.hpp"
#include "cuda/notices.hpp"
#include "cuda/publication.hpp"

namespace shmb::cuda {
namespace {

std::string numbered(std::size_t number) { return "region " + std::to_string(number) + " of the set"; }

std::unexpected<Error> of_region(std::size_t number, Error why) {
  why.sentence = numbered(number) + ": " + why.sentence;
  return std::unexpected(std::move(why));
}

}  // namespace

// One publication of one set.
class SetPublication {
 public:
  SetPublication(const std::shared_ptr<client::Session>& session, std::span<const Region::Handle> regions,
                 const SetSpec& spec)
      : session_(session), regions_(regions), spec_(spec) {}

  Result<Region::Handle> publish(const Driver& driver, const Patience& patience) {
    SHMB_TRY_VOID(begin());
    const Region& first = *regions_.front();
    SHMB_TRY_VOID(Notices::of(session_)->pin_device(*first.memory_.device, patience.broker()));
    const Device device = first.memory_.device->device;
    if (auto waited = wait_for(driver, spec_.sync, {&device, 1}, called(), patience.device()); !waited)
      return regions_.front()->told(waited.error());
    own_.reserve(regions_.size());  // the exports point into it
    for (const Region::Handle& region : regions_) {
      if (region->held_.empty()) {
        SHMB_TRY(own, region->allocations());
        own_.push_back(std::move(own));
      }
      exports_.add(region->held_.empty() ? own_.back() : region->held_);
    }
    auto sent = send(driver, patience.broker());
    if (!sent) return std::unexpected(unknown_if_unanswered(sent.error()));
    return sent;
  }

 private:
  std::string called() const { return spec_.name.empty() ? "a set of regions" : "the set '" + spec_.name + "'"; }

  Result<void> begin() {
    if (session_->is_local()) return client::needs_broker("GPU regions that others can import");
    if (regions_.empty()) return error(Status::invalid, "a set has at least one region");
    std::set<const Region*> seen;
    for (std::size_t i = 0; i < regions_.size(); ++i) {
      Region& region = *regions_[i];
      if (!seen.insert(&region).second) return error(Status::invalid, numbered(i) + " is in the list twice");
      std::unique_lock lock(region.changing_, std::try_to_lock);
      if (!lock) return error(Status::busy, numbered(i) + " is being published or put to sleep by another thread");
      if (region.session_ != nullptr && region.session_ != session_)
        return error(Status::invalid, numbered(i) + " is of another session: a set is of one");
      if (region.memory_.kind == Kind::lent || !region.memory_.device)
        return error(Status::not_exportable, numbered(i) + " is lent memory, or lies on a device that is not visible");
      if (region.pointer() == 0) return of_region(i, region.unmapped().error());
      if (region.published() && region.writer_)
        return error(Status::invalid, numbered(i) + " is still written: say so with written() when it is over");
      if (region.memory_.uuid != regions_.front()->memory_.uuid)
        return error(Status::invalid, numbered(i) + " lies on " + region.memory_.device->uuid_text() +
                                          ", region 0 on " + regions_.front()->memory_.device->uuid_text() +
                                          ": make a set for each device");
      locks_.push_back(std::move(lock));
      begins_.push_back(bytes_);
      bytes_ += region.memory_.bytes;
      sizes_.insert(sizes_.end(), region.memory_.sizes.begin(), region.memory_.sizes.end());
    }
    return list_tensors();
  }

  Result<void> list_tensors() {
    std::vector<Tensor> all;
    for (const SetTensor& one : spec_.tensors) {
      if (one.region >= regions_.size())
        return error(Status::invalid, "tensor '" + one.tensor.name + "' lies in region " + std::to_string(one.region) +
                                          ", and the set has " + std::to_string(regions_.size()) + ", counted from 0");
      const Region::Memory& memory = regions_[one.region]->memory_;
      if (auto inside = fits(one.tensor, memory.length); !inside) return of_region(one.region, inside.error());
      Tensor tensor = one.tensor;
      tensor.offset += begins_[one.region] + memory.offset;
      all.push_back(std::move(tensor));
    }
    SHMB_TRY(made, Manifest::of_set(std::move(all), sizes_));
    manifest_ = std::move(made);
    return {};
  }

  Result<Region::Handle> send(const Driver& driver, client::Deadline deadline) {
    const Region::Memory& like = regions_.front()->memory_;
    client::GpuPublish request = publish_request(driver, like, spec_);
    SHMB_TRY(first, exports_.from(0, called()));
    request.chunks = std::move(first);
    const auto encoded = manifest_.encode();
    SHMB_TRY(list, manifest_file(encoded));
    request.manifest = list.get();
    request.manifest_bytes = encoded.size();
    request.bytes = request.allocation = bytes_;
    request.chunk_bytes = exports_.size();  // with the flag `set`: how many
    request.flags |= SHMBW_GPU_PUBLISH_SET;
    const auto notices = Notices::of(session_);
    const Notices::Opening opening(notices);
    Region::Handle handle = handle_of(driver, like);  // before: a set that was made must not be lost
    SHMB_TRY(answers, client::gpu_publish(*session_, {&request, 1}, deadline));
    if (!answers.front()) return std::unexpected(answers.front().error());
    const client::GpuPublished& made = *answers.front();
    handle->ref_ = made.region;
    handle->rights_ = made.rights;
    handle->published_.store(true, std::memory_order_release);  // from here on its end gives the set back
    try {
      SHMB_TRY_VOID(exports_.send_rest(*session_, made.region, called(), deadline));
      handle->note_state(State::ok, 0);
      notices->enter(handle);
    } catch (const std::bad_alloc&) {
      (void)handle->unname();
      throw;
    }
    return handle;
  }

  // It has no mapping: its maker has the regions.
  Region::Handle handle_of(const Driver& driver, const Region::Memory& like) {
    Region::Memory memory;
    memory.uuid = like.uuid;
    memory.mig = like.mig;
    memory.device = like.device;
    memory.length = memory.bytes = bytes_;
    memory.granularity = like.granularity;
    memory.sizes = sizes_;
    auto handle = Region::make(driver, std::move(memory), session_);
    handle->devices_ = {like.device->device};
    handle->access_.store(Access::read, std::memory_order_release);
    handle->manifest_ = std::move(manifest_);
    return handle;
  }

  const std::shared_ptr<client::Session>& session_;
  std::span<const Region::Handle> regions_;
  const SetSpec& spec_;
  std::vector<std::unique_lock<Turn>> locks_;
  std::vector<std::uint64_t> begins_, sizes_;  // of the regions, and of the chunks
  std::uint64_t bytes_ = 0;
  Manifest manifest_;
  std::vector<std::vector<Allocation>> own_;  // references for the exports, where a region has none
  Exports exports_;
};

Result<Region::Handle> Region::publish_set(const std::shared_ptr<client::Session>& session,
                                           std::span<const Handle> regions, const SetSpec& spec,
                                           const Patience& patience) {
  SHMB_TRY(driver, Driver::load());
  (void)Leaving::run(nullptr);
  return SetPublication(session, regions, spec).publish(*driver, patience);
}

}  // namespace shmb::cuda
