// SPDX-License-Identifier: Apache-2.0
// A channel and its peer, which the test plays: late, wrong, silent and dying brokers.
#pragma once

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/sys_socket.hpp"
#include "client/session/channel.hpp"
#include "tests/support/session.hpp"

namespace channel_tests {

using namespace shmb;
using namespace shmb::client;
using support::must;
using support::status_of;

struct Peer {
  Channel channel;
  Fd socket;

  Peer() {
    auto ends = must_pair();
    socket = std::move(ends[0]);
    channel.open(std::move(ends[1]));
  }
  static std::array<Fd, 2> must_pair() {
    auto ends = sys::seqpacket_pair();
    REQUIRE(ends.has_value());
    return std::move(*ends);
  }
  struct Request {
    std::vector<std::byte> bytes;
    shmbw_header header{};
  };
  Request take() const {
    Request request;
    request.bytes.resize(SHMBW_MAX_MESSAGE);
    std::vector<Fd> fds;
    auto got = sys::receive(socket.get(), request.bytes, fds, true);
    request.bytes.resize(got ? got->size : 0);
    if (request.bytes.size() >= sizeof request.header)
      std::memcpy(&request.header, request.bytes.data(), sizeof request.header);
    return request;
  }
  void give(wire::Bytes packet, std::span<const int> fds = {}) const {
    CHECK(sys::send(socket.get(), packet, {}, fds, true).has_value());
  }
  void answer_status(std::uint64_t tag, std::uint64_t epoch) const {
    std::array<std::byte, 512> buffer;
    wire::Writer writer(buffer);
    shmbw_status_reply reply{};
    reply.epoch = epoch;
    writer.begin(SHMBW_OP_STATUS | SHMBW_REPLY, tag, Status::ok, reply);
    give(writer.finish(0));
  }
  void grant(std::uint64_t tag, std::uint64_t id, int fd) const {
    std::array<std::byte, 512> buffer;
    wire::Writer writer(buffer);
    writer.begin_batch<shmbw_attach_reply>(SHMBW_OP_ATTACH | SHMBW_REPLY, tag, 1);
    shmbw_attach_reply reply{};
    reply.region = {id, 1, 0};
    writer.element(0, reply);
    give(writer.finish(1), std::span(&fd, 1));
  }
  void gone(std::uint64_t watch) const {
    std::array<std::byte, 128> buffer;
    wire::Writer writer(buffer);
    writer.begin(SHMBW_EVENT | 3, 0, Status::ok, shmbw_region_gone_event{1, watch, {5, 1, 0}});
    give(writer.finish(0));
  }
};

inline std::vector<std::byte> status_request() {
  std::vector<std::byte> buffer(64);
  wire::Writer writer(buffer);
  writer.begin(SHMBW_OP_STATUS, 0, Status::ok, shmbw_status{});
  buffer.resize(writer.finish(0).size());
  return buffer;
}
inline std::vector<std::byte> attach_request() {
  std::vector<std::byte> buffer(256);
  wire::Writer writer(buffer);
  writer.begin_batch<shmbw_attach>(SHMBW_OP_ATTACH, 0, 1);
  buffer.resize(writer.finish(0).size());
  return buffer;
}

inline Result<Reply> ask(Channel& channel, std::int64_t timeout = 0) {
  auto packet = status_request();
  return channel.call(packet, Deadline::after(timeout));
}

}  // namespace channel_tests
