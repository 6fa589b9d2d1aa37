// SPDX-License-Identifier: Apache-2.0
// A reply that came after its caller's deadline, or whose descriptors were lost on the way. No caller takes its grants,
// so an undo function gives them back. The table of the wire says which requests have such a function. It stands
// beside the call, and its name says for which: undo_create() for CREATE. Without it a new call does not link.
//
// The functions run in the thread that reads the reply, under the channel's mutex. They do not wait, they call no
// function of a session, and they keep nothing of the reply.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "client/session/call.hpp"
#include "client/session/channel.hpp"
#include "client/session/packet_fields.hpp"

namespace shmb::client {

class LateReply {
 public:
  LateReply(Channel& channel, std::span<const std::byte> request, const wire::PacketView& reply,
            std::span<const Fd> descriptors)
      : fds(descriptors),
        groups(channel.groups),
        pools(channel.pools),
        channel_(channel),
        request_(request),
        reply_(reply) {}
  LateReply(const LateReply&) = delete;
  LateReply& operator=(const LateReply&) = delete;

  // The fixed part of the plain request that was sent.
  template <class T>
  T request() const {
    static_assert(sizeof(T) <= Channel::kKeptOfRequest);
    T out{};
    std::memcpy(&out, request_.data(), std::min(sizeof out, request_.size()));
    return out;
  }
  // The fixed part of the plain reply.
  template <class T>
  T fixed() const {
    return fixed_part<T>(reply_);
  }
  // Calls `take(element)` for each element of a batch that was granted.
  template <class T, class Take>
  void each_granted(Take take) const {
    auto batch = wire::BatchView::open(reply_);
    for (std::size_t i = 0; batch && i < batch->count(); ++i)
      if (auto element = batch->element<T>(i); element && element->outcome.status == 0) take(*element);
  }

  // Sends a request whose answer no call waits for.
  template <std::uint16_t op>
  void ask(const RequestOf<op>& request) {
    channel_.ask_for_nobody(RequestPacket<op>(std::span(&request, 1), Texts{}, 0).bytes());
  }
  // Sends requests that are not answered.
  template <std::uint16_t op>
  void post(std::span<const RequestOf<op>> elements) {
    if (elements.empty()) return;
    channel_.send_later(RequestPacket<op>(elements, Texts{}, 0, SHMBW_HEADER_NO_REPLY).bytes());
  }
  void release(shmbw_region_ref region, std::uint32_t flags) {
    const shmbw_release one{region, 1, flags};
    post<SHMBW_OP_RELEASE>(std::span(&one, 1));
  }
  // Of a batch of leases: all that were granted. `flags`: of RELEASE.
  template <class T>
  void release_granted(std::uint32_t flags) {
    std::vector<shmbw_release> releases;
    each_granted<T>([&](const T& element) { releases.push_back({element.region, 1, flags}); });
    post<SHMBW_OP_RELEASE>(releases);
  }

  const std::span<const Fd> fds;  // of the reply; closed after the function
  GroupPlaces& groups;
  PoolPlaces& pools;

 private:
  Channel& channel_;
  std::span<const std::byte> request_;
  const wire::PacketView& reply_;
};

#define SHMB_UNDO(op, name) void undo_##name(LateReply& late);
SHMBW_REQUESTS_TO_UNDO(SHMB_UNDO)
#undef SHMB_UNDO

}  // namespace shmb::client
