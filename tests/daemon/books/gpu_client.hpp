// SPDX-License-Identifier: Apache-2.0
// GPU requests for the tests of the books: a folder that stands for the driver's files, exports as the fake driver
// makes them, and the requests as calls.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/fault.hpp"
#include "base/sys_gpu.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "tests/daemon/books/books_fixture.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/support/gpu_files.hpp"

namespace shmb::daemon::test {

inline const std::string kPci = support::kGpuBus;
inline const char* const kUuidText = "GPU-c0c1c2c3-c4c5-c6c7-c8c9-cacbcccdcecf";

inline sys::GpuUuid gpu_uuid(std::uint8_t first = 0xc0) {
  sys::GpuUuid uuid;
  for (std::size_t i = 0; i < uuid.size(); ++i) uuid[i] = static_cast<std::uint8_t>(first + i);
  return uuid;
}

// One GPU as the kernel would show it: information and node.
class FakeGpus {
 public:
  FakeGpus() {
    support::make_gpu_files(dir_.path(), kUuidText);
    REQUIRE(fault::configure("gpu=" + dir_.path()));
  }
  ~FakeGpus() { (void)fault::configure("gpu="); }
  std::string file(const std::string& name) const { return dir_.file(name); }
  Fd node() const { return std::move(sys::open(file("fake-nvidia3").c_str(), O_RDWR).value()); }

 private:
  harness::TempDir dir_;
};

using Export = support::GpuExport;

inline Fd copy_of(const Fd& fd) { return Fd::adopt(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

struct GpuRequest {
  std::string name = {};
  std::uint64_t bytes = 4 << 20, chunk_bytes = 0, group = 0, offset = 0, allocation = 0, manifest_bytes = 0,
                granularity = 0;
  std::uint32_t flags = 0, rights = 0, chunks = 1, kind = SHMBW_GPU_KIND_VMM;
  std::int64_t keep = 0;
  sys::GpuUuid uuid = gpu_uuid();
};

inline shmbw_gpu_publish publish_of(const GpuRequest& wish) {
  shmbw_gpu_publish out{};
  out.group = wish.group;
  out.bytes = wish.bytes;
  out.chunk_bytes = wish.chunk_bytes;
  out.granularity = wish.granularity;
  out.keep = wish.keep;
  std::ranges::copy(wish.uuid, out.uuid);
  out.manifest_bytes = wish.manifest_bytes;
  out.kind = wish.kind;
  out.flags = wish.flags;
  out.rights = wish.rights;
  out.chunks = wish.kind == SHMBW_GPU_KIND_VMM ? wish.chunks : 0;
  out.driver = 13000;
  out.name_len = static_cast<std::uint16_t>(wish.name.size());
  out.offset = wish.offset;
  out.allocation = wish.allocation;
  if (wish.kind == SHMBW_GPU_KIND_LEGACY) std::ranges::fill(out.handle, std::uint8_t{0x44});
  return out;
}

template <class Reply>
struct GpuAnswer : Element {
  Reply reply{};
};
template <class Reply>
GpuAnswer<Reply> answer_of(const Packet& packet, std::size_t index = 0) {
  GpuAnswer<Reply> out;
  REQUIRE(packet.status() == Status::ok);
  auto batch = wire::BatchView::open(packet.view());
  REQUIRE(batch);
  auto texts = batch->texts();
  for (std::size_t i = 0; i <= index; ++i) {
    out.reply = batch->template element<Reply>(i).value();
    auto detail = texts.take(out.reply.outcome.detail_len);
    REQUIRE(detail);
    out.status = static_cast<Status>(out.reply.outcome.status);
    if (out.status != Status::ok) out.error = wire::read_element_detail(out.reply.outcome.status, *detail);
  }
  return out;
}
using GpuPublished = GpuAnswer<shmbw_gpu_publish_reply>;
using GpuOpened = GpuAnswer<shmbw_gpu_open_reply>;

// A client that may pass descriptors and has named the one GPU.
Client gpu_client(World& world, std::uint32_t uid = 1000, std::uint32_t pid = 0);
Packet& ask_device(Client& client, const sys::GpuUuid& uuid = gpu_uuid(), std::string_view pci = kPci);
// The event that tells the end of a look.
shmbw_gpu_device_event await_device(World& world, Client& client, std::string* text = nullptr);
// Brings what the wish needs, of exports made here.
GpuPublished publish(Client& client, const GpuRequest& wish = {}, Export* made = nullptr);
GpuOpened open_id(Client& client, shmbw_region_ref ref, std::uint32_t rights = kRead, Packet** packet = nullptr);
GpuOpened open_name(Client& client, std::string_view name, std::uint32_t rights = kRead);
GpuAnswer<shmbw_gpu_report_reply> report(Client& client, shmbw_region_ref ref, shmbw_gpu_finding what, int code = 0);
std::vector<shmbw_gpu_record> gpu_rows(Client& client);
// States that the client was told since the last call.
using States = std::vector<std::uint32_t>;
States states_told(Client& client);

}  // namespace shmb::daemon::test
