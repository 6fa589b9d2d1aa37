// SPDX-License-Identifier: Apache-2.0
// The kernel's facts about files of NVIDIA's driver. The broker holds such descriptors and lends them. It never calls
// the driver by ioctl, because its requests change from release to release.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.hpp"

namespace shmb::sys {

enum class GpuKind { other, control, node };  // not the driver's; /dev/nvidiactl, as all exports are; /dev/nvidiaN
struct GpuFile {
  GpuKind kind = GpuKind::other;
  std::uint32_t minor = UINT32_MAX;  // of a node
};

// For a descriptor of a peer: the kernel's own memory answers. No file system behind it is asked, because that could
// block the caller. A descriptor that is only a path (O_PATH) is `other`: no file is open behind it.
Sys<GpuFile> gpu_file(int fd);
// Whether two descriptors share one open file. F_DUPFD_QUERY (6.10), else kcmp(2). Where both are refused, as in
// ordinary containers on older kernels: O_NONBLOCK is changed on one and looked for on the other, and set back.
Sys<bool> same_open_file(int one, int other);

using GpuUuid = std::array<std::uint8_t, 16>;
// "GPU-0123abcd-....", or "MIG-..." of a MIG instance, as nvidia-smi writes it.
std::string gpu_uuid_text(std::span<const std::uint8_t, 16> uuid, bool mig);

struct GpuInformation {
  GpuUuid uuid{};  // of the GPU; a MIG device has one of its own
  std::uint32_t minor = 0;
};
// The driver's facts in /proc about the GPU at a PCI address, in any form that the driver's functions return. It may
// take a while, because a sleeping GPU is woken. EINVAL: no such form; EPROTO: lines are missing.
Sys<GpuInformation> gpu_information(std::string_view pci);
// The minor number of that GPU's node. gVisor shows no GPU in /proc (`gpus` is absent beside the driver's other files):
// there the only node in /dev is the one. ENXIO: there are several, or none.
Sys<std::uint32_t> gpu_minor(std::string_view pci);
bool gpus_hidden_in_proc();  // as under gVisor
std::string gpu_node_path(std::uint32_t minor);
Sys<Fd> open_gpu_node(std::uint32_t minor);  // may take seconds, as the first open initialises the GPU

}  // namespace shmb::sys
