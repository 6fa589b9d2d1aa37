// SPDX-License-Identifier: Apache-2.0
// The requests of GPU memory on the stage, and the files that stand for the driver's.
#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "tests/support/gpu_files.hpp"
#include "tests/wire/stage.hpp"

namespace wire_test {
namespace {

std::string node_file;  // of the one GPU

bool send_with(RawClient& client, const Packet& packet, const std::vector<shmb::Fd>& files) {
  std::vector<int> fds;
  for (const shmb::Fd& file : files) fds.push_back(file.get());
  return client.send(packet, fds);
}

shmbw_gpu_publish first_of_two() {
  shmbw_gpu_publish wish = gpu_publication(SHMBW_GPU_KIND_VMM);
  wish.bytes = 4 << 20;
  wish.chunk_bytes = 2 << 20;
  return wish;
}

// A manifest is a memfd that nobody can change any more.
constexpr std::string_view kManifest = "shape and place";
}  // namespace

std::vector<shmb::Fd> gpu_export() {
  support::GpuExport made;
  std::vector<shmb::Fd> out;
  out.push_back(std::move(made.keeper));
  out.push_back(std::move(made.share));
  return out;
}

Packet stating(Packet packet, std::size_t count) {
  shmbw_header header = header_of(packet);
  header.n_fds = static_cast<std::uint16_t>(count);
  set_header(packet, header);
  return packet;
}

void make_gpu_files(const std::string& folder) { node_file = support::make_gpu_files(folder); }

std::string name_gpu(RawClient& client) {
  shmbw_gpu_device wish{};
  std::ranges::copy(kGpuUuid, wish.uuid);
  wish.pci_len = sizeof support::kGpuBus - 1;
  RawPacket named = client.call(SHMBW_OP_GPU_DEVICE, wish, support::kGpuBus);
  if (!named.ok()) return "GPU_DEVICE: " + named.sentence();
  if (named.fixed<shmbw_gpu_device_reply>().hold == SHMBW_GPU_HOLD_NODE) return {};
  for (;;) {
    RawPacket event = client.event(60'000);
    if (event.kind != RawPacket::Kind::packet) return "no event gpu_device";
    if (event.header().op != (SHMBW_EVENT | SHMBW_EVENT_GPU_DEVICE)) continue;
    return event.fixed<shmbw_gpu_device_event>().hold == SHMBW_GPU_HOLD_NODE ? "" : "the GPU's node is not held";
  }
}

shmbw_gpu_publish gpu_publication(shmbw_gpu_kind kind) {
  shmbw_gpu_publish wish{};
  wish.bytes = 2 << 20;
  std::ranges::copy(kGpuUuid, wish.uuid);
  wish.kind = kind;
  if (kind == SHMBW_GPU_KIND_VMM) wish.chunks = 1;
  else wish.handle[5] = 9;
  return wish;
}

// Others may write, so that the attacker may ask for it.
std::string Stage::set_gpu() {
  if (std::string lack = name_gpu(parent); !lack.empty()) return lack;
  shmbw_gpu_publish wish = gpu_publication(SHMBW_GPU_KIND_VMM);
  wish.flags = SHMBW_GPU_PUBLISH_WRITING | SHMBW_GPU_PUBLISH_MANY_WRITERS;
  wish.name_len = 3;
  if (!send_with(parent, stating(batch(SHMBW_OP_GPU_PUBLISH, 98, std::vector{wish}, "gpu"), 2), gpu_export()))
    return "sending GPU_PUBLISH";
  RawPacket made = parent.reply(98);
  if (!made.ok()) return "GPU_PUBLISH: " + made.sentence();
  if (made.element<shmbw_outcome>(0).status != 0) return "GPU_PUBLISH: " + error_of_element(made).sentence;
  gpu = made.element<shmbw_gpu_publish_reply>(0).region;
  return {};
}

std::string Stage::open_gpu() {
  if (std::string lack = name_gpu(attacker); !lack.empty()) return lack;
  shmbw_gpu_open open{};
  open.by = SHMBW_ATTACH_BY_ID;
  open.rights = SHMBW_RIGHT_KNOWN & ~SHMBW_RIGHT_MAP_WRITE;  // a dropped writer would poison the stage
  open.region = gpu;
  RawPacket opened = attacker.call_batch(SHMBW_OP_GPU_OPEN, one(open));
  if (!opened.ok() || opened.element<shmbw_outcome>(0).status != 0)
    return "GPU_OPEN: " + error_of_element(opened).sentence;
  const shmbw_gpu_publish wish = gpu_publication(SHMBW_GPU_KIND_LEGACY);
  RawPacket made = attacker.call_batch(SHMBW_OP_GPU_PUBLISH, one(wish));
  if (!made.ok() || made.element<shmbw_outcome>(0).status != 0) return "GPU_PUBLISH of the attacker";
  lent = made.element<shmbw_gpu_publish_reply>(0).region;
  if (!send_with(attacker, stating(batch(SHMBW_OP_GPU_PUBLISH, 96, std::vector{first_of_two()}), 2), gpu_export()))
    return "sending GPU_PUBLISH of a part";
  RawPacket begun = attacker.reply(96);
  if (!begun.ok() || begun.element<shmbw_outcome>(0).status != 0)
    return "GPU_PUBLISH of a part: " + error_of_element(begun).sentence;
  part = begun.element<shmbw_gpu_publish_reply>(0).region;
  return {};
}

const std::vector<Valid>& all_valid_of_gpu() {
  using S = const Stage&;
  using Tag = std::uint64_t;
  static const std::vector<Valid> all = [] {
    std::vector<Valid> list;
    auto add = [&](const char* name, auto make, std::function<std::vector<shmb::Fd>()> bring = {}) {
      list.push_back({name, false, false, false, false, make, true, std::move(bring)});
    };
    add("GPU_DEVICE", [](S, Tag tag) {
      shmbw_gpu_device wish{};
      std::ranges::copy(kGpuUuid, wish.uuid);
      wish.pci_len = sizeof support::kGpuBus - 1;
      return plain(SHMBW_OP_GPU_DEVICE, tag, wish, support::kGpuBus);
    });
    add(
        "GPU_DEVICE with its node",
        [](S, Tag tag) {
          shmbw_gpu_device wish{};
          std::ranges::fill(wish.uuid, std::uint8_t{7});
          wish.flags = SHMBW_GPU_DEVICE_NODE_GIVEN;
          return stating(plain(SHMBW_OP_GPU_DEVICE, tag, wish), 1);
        },
        [] {
          std::vector<shmb::Fd> out;
          if (auto node = shmb::sys::open(node_file.c_str(), O_RDWR)) out.push_back(std::move(*node));
          return out;
        });
    add(
        "GPU_PUBLISH with a manifest",
        [](S, Tag tag) {
          shmbw_gpu_publish wish = gpu_publication(SHMBW_GPU_KIND_VMM);
          wish.flags = SHMBW_GPU_PUBLISH_MANIFEST;
          wish.manifest_bytes = kManifest.size();
          return stating(batch(SHMBW_OP_GPU_PUBLISH, tag, std::vector{wish}), 3);
        },
        [] {
          auto out = gpu_export();
          out.push_back(support::manifest(kManifest));
          return out;
        });
    add(
        "GPU_CHUNKS",
        [](S s, Tag tag) {
          shmbw_gpu_chunks wish{};
          wish.region = s.part;
          wish.first = 1;
          wish.count = 1;
          return stating(plain(SHMBW_OP_GPU_CHUNKS, tag, wish), 2);
        },
        gpu_export);
    add("GPU_PUBLISH", [](S, Tag tag) {
      shmbw_gpu_publish wish = gpu_publication(SHMBW_GPU_KIND_LEGACY);
      wish.name_len = 3;
      return batch(SHMBW_OP_GPU_PUBLISH, tag, std::vector{wish}, "own");
    });
    add("GPU_OPEN by id", [](S s, Tag tag) {
      shmbw_gpu_open wish{};
      wish.by = SHMBW_ATTACH_BY_ID;
      wish.rights = SHMBW_RIGHT_MAP_READ;
      wish.region = s.gpu;
      return batch(SHMBW_OP_GPU_OPEN, tag, std::vector{wish});
    });
    add("GPU_OPEN by name", [](S s, Tag tag) {
      shmbw_gpu_open wish{};
      wish.by = SHMBW_ATTACH_BY_NAME;
      wish.rights = SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE;
      wish.flags = SHMBW_GPU_OPEN_MANIFEST;
      wish.group_len = static_cast<std::uint16_t>(s.group_name.size());
      wish.name_len = 3;
      return batch(SHMBW_OP_GPU_OPEN, tag, std::vector{wish}, s.group_name + "gpu");
    });
    add("GPU_MORE", [](S s, Tag tag) { return plain(SHMBW_OP_GPU_MORE, tag, shmbw_gpu_more{s.gpu, 0, 1}); });
    add("GPU_REPORT", [](S s, Tag tag) {
      shmbw_gpu_report failed{};
      failed.region = s.gpu;
      failed.what = SHMBW_GPU_FINDING_IMPORT_FAILED;
      failed.code = 304;
      return batch(SHMBW_OP_GPU_REPORT, tag, std::vector{failed});
    });
    add("GPU_REPORT of a lost device", [](S, Tag tag) {
      shmbw_gpu_report lost{};
      lost.what = SHMBW_GPU_FINDING_DEVICE_LOST;
      std::ranges::copy(kGpuUuid, lost.uuid);
      return batch(SHMBW_OP_GPU_REPORT, tag, std::vector{lost});
    });
    add("GPU_RETIRE",
        [](S s, Tag tag) { return batch(SHMBW_OP_GPU_RETIRE, tag, std::vector{shmbw_gpu_retire{s.lent}}); });
    add("GPU_TIMELINE", [](S, Tag tag) {
      shmbw_gpu_timeline wish{};
      wish.words = 8;
      wish.name_len = 5;
      return plain(SHMBW_OP_GPU_TIMELINE, tag, wish, "steps");
    });
    add("GPU_PINNED",
        [](S s, Tag tag) { return batch(SHMBW_OP_GPU_PINNED, tag, std::vector{shmbw_gpu_pinned{s.region, 0, 0}}); });
    add("LIST of GPU regions", [](S s, Tag tag) {
      shmbw_list wish{};
      wish.table = SHMBW_TABLE_GPU_REGIONS;
      wish.region = s.gpu;
      return plain(SHMBW_OP_LIST, tag, wish);
    });
    return list;
  }();
  return all;
}

}  // namespace wire_test
