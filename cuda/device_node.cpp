// SPDX-License-Identifier: Apache-2.0
// Which node is whose stands in the driver's files under /proc: lines "GPU UUID" and "Device Minor". Looked up by PCI
// address, because under MIG the device's UUID is the instance's.
#include "cuda/device_node.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/sys_file.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"

namespace shmb::cuda {
namespace {

struct Places {
  std::string information, nodes;
};

Places places_of_nodes() {
#ifdef SHMB_TEST_SEAM
  if (const char* folder = ::secure_getenv("FAKECUDA_NODES"))
    return {std::string(folder) + "/gpus/", std::string(folder) + "/fake-nvidia"};
#endif
  return {"/proc/driver/nvidia/gpus/", "/dev/nvidia"};
}

}  // namespace

Result<Fd> open_device_node(const DeviceInfo& device) {
  const Places places = places_of_nodes();
  std::string address = device.bus_id;
  std::ranges::transform(address, address.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // The driver's API writes the domain with eight digits, its files with four.
  if (const auto colon = address.find(':'); colon == 8 && address.starts_with("0000")) address.erase(0, 4);
  const std::string path = places.information + address + "/information";
  auto text = sys::read_file(path.c_str(), 4096);
  if (!text) return system_failure(text.error(), "reading " + path);
  constexpr std::string_view label = "Device Minor:";
  const auto at = text->find(label);
  std::size_t digit =
      at == std::string::npos ? std::string::npos : text->find_first_of("0123456789", at + label.size());
  if (digit == std::string::npos) return error(Status::device_not_pinned, path + " names no device minor");
  std::string minor;
  while (digit < text->size() && (*text)[digit] >= '0' && (*text)[digit] <= '9' && minor.size() < 4)
    minor += (*text)[digit++];
  const std::string node = places.nodes + minor;
  auto fd = sys::open(node.c_str(), O_RDWR);
  if (!fd) return system_failure(fd.error(), "opening " + node);
  return std::move(*fd);
}

}  // namespace shmb::cuda
