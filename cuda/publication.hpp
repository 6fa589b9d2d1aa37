// SPDX-License-Identifier: Apache-2.0
// The common part of a publication of one region and of a set: two exports of each allocation, made for one packet at a
// time, and the words of the request. So 20,000 regions, or one of 20,000 chunks, need no more descriptors than 63 do.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/region.hpp"

namespace shmb::cuda {

class Exports {
 public:
  static constexpr std::size_t kOfPacket = 126;  // keeper and share of each: 252 of 253 descriptors

  void add(const std::vector<Allocation>& allocations) {
    for (const Allocation& one : allocations) all_.push_back(&one);
  }
  std::size_t size() const { return all_.size(); }
  // Those of the packet that begins with this chunk. Earlier ones are closed.
  Result<std::vector<client::GpuChunk>> from(std::size_t first, const std::string& object) {
    close();
    std::vector<client::GpuChunk> made;
    for (std::size_t i = first; i < all_.size() && i < first + kOfPacket; ++i) {
      SHMB_TRY(keeper, all_[i]->share(object));
      SHMB_TRY(share, all_[i]->share(object));
      made.push_back({keeper.get(), share.get()});
      open_.push_back(std::move(keeper));
      open_.push_back(std::move(share));
    }
    return made;
  }
  // Those that did not fit into the first packet. Until the last of them has come, the region has no name and cannot be
  // opened.
  Result<void> send_rest(client::Session& session, shmbw_region_ref region, const std::string& object,
                         client::Deadline deadline) {
    for (std::size_t first = kOfPacket; first < all_.size(); first += kOfPacket) {
      SHMB_TRY(next, from(first, object));
      SHMB_TRY_VOID(client::gpu_add_chunks(session, region, first, next, deadline));
    }
    return {};
  }
  void close() { open_.clear(); }

 private:
  std::vector<const Allocation*> all_;
  std::vector<Fd> open_;
};

template <class Spec>
client::GpuPublish publish_request(const Driver& driver, const Region::Memory& memory, const Spec& spec) {
  client::GpuPublish request;
  request.group = spec.group;
  request.granularity = memory.granularity;
  request.keep = spec.keep;
  std::ranges::copy(memory.uuid.bytes, request.uuid.begin());
  request.driver = static_cast<std::uint32_t>(driver.version());
  request.name = spec.name;
  if (spec.replace) request.flags |= SHMBW_GPU_PUBLISH_REPLACE;
  if (memory.mig) request.flags |= SHMBW_GPU_PUBLISH_MIG;
  return request;
}

// The broker was asked and may have it. Others may read it by now.
inline Error unknown_if_unanswered(Error why) {
  if (why.status == Status::deadline || why.status == Status::session_lost)
    why.sentence += "; the broker may have it all the same: publish it again, or release it";
  return why;
}

}  // namespace shmb::cuda
