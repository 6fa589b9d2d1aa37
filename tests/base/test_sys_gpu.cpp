// SPDX-License-Identifier: Apache-2.0
// How descriptors are recognised, and the driver's text in /proc, in files that stand for it.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/fault.hpp"
#include "base/sys_gpu.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "tests/harness/temp_dir.hpp"

namespace sys = shmb::sys;
using shmb::Fd;

namespace {

struct GpuFolder {
  harness::TempDir dir;
  GpuFolder() { REQUIRE(shmb::fault::configure("gpu=" + dir.path())); }
  ~GpuFolder() { (void)shmb::fault::configure("gpu="); }
  void information(const std::string& pci, const std::string& text) const {
    std::filesystem::create_directories(dir.file("gpus/" + pci));
    std::ofstream(dir.file("gpus/" + pci + "/information")) << text;
  }
};

const std::string kWhole =
    "Model: \t\t NVIDIA H200\nIRQ:   \t\t 80\nGPU UUID: \t GPU-00112233-4455-6677-8899-aabbccddeeff\n"
    "Bus Location: \t 0000:c1:00.0\nDevice Minor: \t 5\nGPU Excluded:\t No\n";

int error_of(const shmb::Sys<sys::GpuInformation>& found) { return found ? 0 : found.error().value; }

}  // namespace

TEST_CASE("a file that is not the driver's is of kind other, also a mere path and a memfd") {
  const Fd null = sys::open("/dev/null", O_RDWR).value(), memory = sys::memfd_create("fakecuda:1", false).value();
  const Fd path = sys::open("/dev/null", O_PATH).value();
  for (int fd : {null.get(), memory.get(), path.get()}) CHECK(sys::gpu_file(fd)->kind == sys::GpuKind::other);
  CHECK_FALSE(sys::gpu_file(-1));
}

TEST_CASE("in a test's folder the fake driver's files count") {
  GpuFolder folder;
  std::ofstream(folder.dir.file("fake-nvidia7")) << "node";
  const Fd memory = sys::memfd_create("fakecuda:1", false).value(), plain = sys::memfd_create("other", false).value();
  CHECK(sys::gpu_file(memory.get())->kind == sys::GpuKind::control);
  CHECK(sys::gpu_file(plain.get())->kind == sys::GpuKind::other);
  const Fd node = sys::open_gpu_node(7).value();
  CHECK(sys::gpu_file(node.get())->kind == sys::GpuKind::node);
  CHECK(sys::gpu_file(node.get())->minor == 7);
  CHECK_FALSE(sys::open_gpu_node(8));
}

TEST_CASE("a copy of a descriptor is the same open file, a second open is not, by each of the kernel's ways") {
  const Fd one = sys::memfd_create("one", false).value();
  const Fd copy = Fd::adopt(::fcntl(one.get(), F_DUPFD_CLOEXEC, 0));
  const Fd again = sys::open(("/proc/self/fd/" + std::to_string(one.get())).c_str(), O_RDWR).value();
  const auto tells_apart = [&] {
    return sys::same_open_file(one.get(), copy.get()).value() && !sys::same_open_file(one.get(), again.get()).value();
  };
  CHECK(tells_apart());
  shmb::fault::pretend_kernel(5, 15);
  CHECK(tells_apart());
  // As in a container whose profile has no kcmp: by the flags of the open file, which are left as they were.
  shmb::fault::inject(shmb::fault::Call::kcmp, EPERM);
  for (const int flags : {0, O_NONBLOCK}) {
    REQUIRE(::fcntl(one.get(), F_SETFL, flags) == 0);
    REQUIRE(::fcntl(again.get(), F_SETFL, flags) == 0);
    const int before = ::fcntl(one.get(), F_GETFL);
    CHECK(tells_apart());
    CHECK(::fcntl(one.get(), F_GETFL) == before);
    CHECK((::fcntl(again.get(), F_GETFL) & O_NONBLOCK) == flags);
  }
  CHECK_FALSE(sys::same_open_file(one.get(), -1));
  shmb::fault::clear();
  shmb::fault::pretend_kernel(0, 0);
}

TEST_CASE("a GPU is found by its PCI address in each of the forms that the driver's functions give") {
  GpuFolder folder;
  folder.information("0000:c1:00.0", kWhole);
  for (const char* pci : {"0000:c1:00.0", "0000:C1:00.0", "00000000:C1:00.0"}) {
    const auto found = sys::gpu_information(pci);
    REQUIRE(found);
    CHECK(found->minor == 5);
    CHECK(found->uuid[0] == 0x00);
    CHECK(found->uuid[15] == 0xff);
  }
  CHECK(error_of(sys::gpu_information("0000:c2:00.0")) == ENOENT);
}

TEST_CASE("text that is no PCI address is refused before any file is opened") {
  GpuFolder folder;
  for (const char* pci : {"", "..", "0000:c1:00", "0000:c1:00.0/..", "0000/c1:00.0", "../../etc/p", "10000000:c1:00.0"})
    CHECK(error_of(sys::gpu_information(pci)) == EINVAL);
}

TEST_CASE("information that lacks a line, or in which one makes no sense, is an error") {
  GpuFolder folder;
  auto with = [&](const std::string& text) {
    folder.information("0000:01:00.0", text);
    return error_of(sys::gpu_information("0000:01:00.0"));
  };
  CHECK(with(kWhole) == 0);
  CHECK(with("") == EPROTO);
  CHECK(with("GPU UUID: \t GPU-00112233-4455-6677-8899-aabbccddeeff\n") == EPROTO);
  CHECK(with("Device Minor: \t 5\n") == EPROTO);
  CHECK(with("GPU UUID: \t GPU-00112233\nDevice Minor: \t 5\n") == EPROTO);
  CHECK(with("GPU UUID: \t GPU-00112233-4455-6677-8899-aabbccddeeff\nDevice Minor: \t 255\n") == EPROTO);
  CHECK(with("GPU UUID: \t GPU-00112233-4455-6677-8899-aabbccddeeff\nDevice Minor: \t 254\n") == EPROTO);  // modeset
  CHECK(with("GPU UUID: \t GPU-00112233-4455-6677-8899-aabbccddeeff\nDevice Minor: \t many\n") == EPROTO);
}

TEST_CASE("under gVisor, which has no folder of GPUs beside the driver's files, the only node is the GPU's") {
  GpuFolder folder;
  const auto minor = [] {
    const auto found = sys::gpu_minor("0000:c1:00.0");
    return found ? static_cast<int>(*found) : -found.error().value;
  };
  CHECK(sys::gpus_hidden_in_proc());
  CHECK(minor() == -ENXIO);  // no node
  std::ofstream(folder.dir.file("fake-nvidia3")) << "node";
  CHECK(minor() == 3);
  std::ofstream(folder.dir.file("fake-nvidia4")) << "node";
  CHECK(minor() == -ENXIO);  // which of the two?
  folder.information("0000:c2:00.0", kWhole);
  CHECK_FALSE(sys::gpus_hidden_in_proc());
  CHECK(minor() == -ENOENT);  // the folder is there, and has no such GPU
  folder.information("0000:c1:00.0", kWhole);
  CHECK(minor() == 5);
}
