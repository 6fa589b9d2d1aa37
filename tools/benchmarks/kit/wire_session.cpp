// SPDX-License-Identifier: Apache-2.0
// See wire_session.hpp.
#include "tools/benchmarks/kit/wire_session.hpp"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>

#include "proto/packet.hpp"
#include "tools/benchmarks/kit/process.hpp"

namespace shmb::bench {
namespace {

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    give_up(path);
  }
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

template <class T>
T fixed_part(const wire::PacketView& packet) {
  auto value = wire::read_struct<T>(packet.fixed);
  if (!value) give_up("a reply of another protocol");
  return *value;
}

}  // namespace

int connect_to(const std::string& path) {
  sockaddr_un address = address_of(path);
  int fd = must(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), "socket");
  while (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == -1)
    if (errno != EINTR && errno != EAGAIN) give_up("connect " + path);
  return fd;
}

int listen_at(const std::string& path, int backlog) {
  sockaddr_un address = address_of(path);
  int fd = must(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), "socket");
  unlink(path.c_str());
  must(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), "bind");
  must(listen(fd, backlog), "listen");
  return fd;
}

WireSession WireSession::open(const std::string& socket_path) {
  WireSession session;
  session.socket_ = Fd::adopt(connect_to(socket_path));
  std::byte request[sizeof(shmbw_header) + sizeof(shmbw_hello)];
  shmbw_hello hello{};
  hello.version_min = hello.version_max = SHMBW_PROTOCOL;
  hello.pid = static_cast<std::uint32_t>(getpid());
  wire::Writer writer(request);
  writer.begin(SHMBW_OP_HELLO, 1, Status::ok, hello);
  session.call(writer.finish(0));
  return session;
}

wire::PacketView WireSession::call(wire::Bytes request, std::vector<Fd>* fds) {
  while (send(socket_.get(), request.data(), request.size(), MSG_NOSIGNAL) == -1)
    if (errno != EINTR) give_up("send to the broker");
  wire::Incoming reply;
  do {
    reply = wire::receive_packet(socket_.get(), buffer_, wire::Direction::from_broker, true);
  } while (reply.kind == wire::Incoming::Kind::packet && (reply.view.header.op & SHMBW_EVENT) != 0);
  errno = 0;
  if (reply.kind != wire::Incoming::Kind::packet) give_up("the broker closed the connection " + reply.reason);
  if (reply.view.header.status != 0) {
    std::string_view sentence(reinterpret_cast<const char*>(reply.view.rest.data()), reply.view.rest.size());
    give_up("the broker refused: " + std::string(sentence));
  }
  if (fds != nullptr) *fds = std::move(reply.fds);
  return reply.view;
}

WireSession::Created WireSession::create(std::size_t count, std::uint64_t length) {
  std::vector<std::byte> request(SHMBW_MAX_MESSAGE);
  wire::Writer writer(request);
  writer.begin_batch<shmbw_create>(SHMBW_OP_CREATE, 2, count);
  shmbw_create item{};
  item.length = length;
  for (std::size_t i = 0; i < count; ++i) writer.element(i, item);
  Created created;
  auto reply = call(writer.finish(0), &created.fds);
  auto batch = wire::BatchView::open(reply);
  for (std::size_t i = 0; batch && i < batch->count(); ++i) {
    auto element = batch->element<shmbw_create_reply>(i);
    if (!element || element->outcome.status != 0) give_up("the broker refused a region");
    created.regions.push_back(element->region);
  }
  if (created.regions.size() != count || created.fds.size() != count) give_up("a create was answered in part");
  return created;
}

void WireSession::create_kept(std::size_t count, std::uint64_t length, const std::string& prefix) {
  std::vector<std::byte> request(SHMBW_MAX_MESSAGE);
  wire::Writer writer(request);
  writer.begin_batch<shmbw_create>(SHMBW_OP_CREATE, 2, count);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    names.push_back(prefix + std::to_string(i));
    shmbw_create item{};
    item.length = length;
    item.keep = 120'000'000'000;  // so that a bench which fails leaves nothing for ever
    item.flags = SHMBW_CREATE_KEEP_GIVEN;
    item.name_len = static_cast<std::uint16_t>(names.back().size());
    writer.element(i, item);
  }
  for (const std::string& name : names) writer.text(name);
  std::vector<Fd> fds;
  auto batch = wire::BatchView::open(call(writer.finish(0), &fds));
  for (std::size_t i = 0; i < count; ++i) {
    auto element = batch ? batch->element<shmbw_create_reply>(i) : std::unexpected(Status::protocol);
    if (!element || element->outcome.status != 0) give_up("the broker refused a region with a name");
  }
}

void WireSession::release(const std::vector<shmbw_region_ref>& regions) {
  for (std::size_t from = 0; from < regions.size(); from += SHMBW_MAX_BATCH) {
    std::size_t count = std::min<std::size_t>(SHMBW_MAX_BATCH, regions.size() - from);
    std::vector<std::byte> request(SHMBW_MAX_MESSAGE);
    wire::Writer writer(request);
    writer.begin_batch<shmbw_release>(SHMBW_OP_RELEASE, 3, count);
    for (std::size_t i = 0; i < count; ++i) {
      shmbw_release item{};
      item.region = regions[from + i];
      writer.element(i, item);
    }
    call(writer.finish(0));
  }
}

shmbw_status_reply WireSession::status() {
  std::byte request[64];
  wire::Writer writer(request);
  writer.begin(SHMBW_OP_STATUS, 4, Status::ok, shmbw_status{});
  return fixed_part<shmbw_status_reply>(call(writer.finish(0)));
}

void WireSession::use_receive_buffers() {
  constexpr int kMoreThanBuffers = 256;
  // Zeros behind a known struct are the fields of a later version that say nothing: the broker accepts them.
  struct Longest {
    shmbw_status known;
    std::byte later[SHMBW_MAX_MESSAGE - sizeof(shmbw_header) - sizeof(shmbw_status)];
  } longest{};
  std::vector<std::byte> request(SHMBW_MAX_MESSAGE);
  for (int i = 0; i < kMoreThanBuffers; ++i) {
    wire::Writer writer(request);
    writer.begin(SHMBW_OP_STATUS, 7, Status::ok, longest);
    call(writer.finish(0));
  }
}

void WireSession::join_world(std::uint32_t port) {
  std::byte request[128];
  wire::Writer writer(request);
  writer.begin(SHMBW_OP_WORLD_JOIN, 5, Status::ok, shmbw_world_join{port, 0, 1, 9, 5});
  writer.text("localhost");
  writer.text("bench");
  call(writer.finish(0));
}

void WireSession::create_references(std::size_t count) {
  for (std::size_t made = 0; made < count; made += SHMBW_MAX_BATCH) {
    const std::size_t part = std::min<std::size_t>(SHMBW_MAX_BATCH, count - made);
    std::vector<std::byte> request(SHMBW_MAX_MESSAGE);
    wire::Writer writer(request);
    writer.begin_batch<shmbw_ref_create>(SHMBW_OP_REF_CREATE, 6, part);
    for (std::size_t i = 0; i < part; ++i)
      writer.element(i, shmbw_ref_create{0, 0, 0, 0xffff'ffff, SHMBW_REF_STATE_READY, 0});
    auto reply = call(writer.finish(0));
    auto batch = wire::BatchView::open(reply);
    for (std::size_t i = 0; i < part; ++i) {
      auto element = batch ? batch->element<shmbw_ref_create_reply>(i) : std::unexpected(Status::protocol);
      if (!element || element->outcome.status != 0) give_up("the broker refused a reference");
    }
  }
}

std::vector<std::byte> attach_request(shmbw_region_ref region, bool descriptor) {
  std::vector<std::byte> request(256);
  shmbw_attach item{};
  item.by = SHMBW_ATTACH_BY_ID;
  item.rights = SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE;
  item.flags = descriptor ? 0 : static_cast<std::uint32_t>(SHMBW_ATTACH_NO_FD);
  item.region = region;
  wire::Writer writer(request);
  writer.begin_batch<shmbw_attach>(SHMBW_OP_ATTACH, 5, 1);
  writer.element(0, item);
  request.resize(writer.finish(0).size());
  return request;
}

}  // namespace shmb::bench
