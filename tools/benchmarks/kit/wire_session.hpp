// SPDX-License-Identifier: Apache-2.0
// A connection that speaks the wire without the library: load and storms need thousands of sessions with prepared
// packets, and must not measure the library where the broker is meant.
#pragma once

#include <string>
#include <vector>

#include "base/fd.hpp"
#include "proto/codec.hpp"
#include "tools/benchmarks/kit/process.hpp"

namespace shmb::bench {

class WireSession {
 public:
  static WireSession open(const std::string& socket_path);  // HELLO included
  int socket() const { return socket_.get(); }

  struct Created {
    std::vector<shmbw_region_ref> regions;
    std::vector<Fd> fds;
  };
  Created create(std::size_t count, std::uint64_t length);  // up to 253, unnamed
  // So many regions with names that begin so. They stay for two minutes after the session's end.
  void create_kept(std::size_t count, std::uint64_t length, const std::string& prefix);
  void release(const std::vector<shmbw_region_ref>& regions);
  shmbw_status_reply status();
  // Requests of the greatest length, more than an engine has receive buffers: each of its pages has then been used.
  void use_receive_buffers();
  // A world of one, and references of its worker to itself.
  void join_world(std::uint32_t port);
  void create_references(std::size_t count);

  // One plain request, and the fixed part of its reply. Descriptors that come with it are closed.
  template <class Reply, class T>
  Reply ask(std::uint16_t op, const T& fixed, std::string_view text = {}) {
    std::byte request[512];
    wire::Writer writer(request);
    writer.begin(op, 7, Status::ok, fixed);
    writer.text(text);
    std::vector<Fd> fds;
    auto reply = wire::read_struct<Reply>(call(writer.finish(0), &fds).fixed);
    if (!reply) give_up("a reply of another protocol");
    return *reply;
  }

 private:
  wire::PacketView call(wire::Bytes request, std::vector<Fd>* fds = nullptr);
  Fd socket_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(SHMBW_MAX_MESSAGE);
};

// An ATTACH by id, ready to be sent again and again.
std::vector<std::byte> attach_request(shmbw_region_ref region, bool descriptor);

int connect_to(const std::string& path);  // a plain SEQPACKET connection; the caller owns the descriptor
int listen_at(const std::string& path, int backlog);

}  // namespace shmb::bench
