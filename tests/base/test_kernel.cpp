// SPDX-License-Identifier: Apache-2.0
// The probe: agrees with what the wrappers really do, on this kernel and under each pretended one.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>

#include "base/compat.hpp"
#include "base/kernel.hpp"
#include "base/mapping.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/emulator.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/skip.hpp"

using harness::PretendedKernel;
using shmb::Fd;
using shmb::KernelFeatures;
using shmb::fault::Call;

namespace {

bool has_loss(const KernelFeatures& features, std::string_view part) {
  for (const std::string& loss : features.losses)
    if (loss.find(part) != std::string::npos) return true;
  return false;
}

// With any result of the probe, the wrappers must do the same.
void check_wrappers_agree(const KernelFeatures& features) {
  auto region = shmb::sys::memfd_create("agree", true);
  REQUIRE(region);
  CHECK(((shmb::sys::seals(region->get()).value() & F_SEAL_EXEC) != 0) == features.exec_seal);

  auto ends = shmb::sys::seqpacket_pair();
  REQUIRE(ends);
  CHECK(shmb::sys::peer_pidfd((*ends)[0].get()).has_value() == features.peer_pidfd);
  CHECK(shmb::sys::refuse_descriptors((*ends)[0].get()).has_value() == features.pass_rights);

  auto self = shmb::sys::pidfd_open(::getpid());
  CHECK(self.has_value() == features.pidfd_open);
  auto child = harness::Child::run([] { return 5; });
  REQUIRE(child.wait() == 5);
  CHECK(shmb::sys::pidfd_exit_info(child.pidfd()).has_value() == features.exit_info);

  REQUIRE(shmb::sys::truncate(region->get(), shmb::kHugePage));
  auto memory = shmb::Mapping::map(region->get(), 0, shmb::kHugePage, shmb::Access::read_write);
  REQUIRE(memory);
  CHECK(shmb::sys::madvise(memory->data(), 4096, MADV_POPULATE_WRITE).has_value() == features.populate);
  memory->data()[0] = std::byte{1};
  if (!features.collapse)
    CHECK(shmb::sys::madvise(memory->data(), shmb::kHugePage, MADV_COLLAPSE).error().value == EINVAL);
}

}  // namespace

TEST_CASE("the probe reports the running kernel") {
  const KernelFeatures features = shmb::probe_kernel();
  utsname name{};
  REQUIRE(::uname(&name) == 0);
  CHECK(features.release == name.release);
  CHECK(std::string(name.release)
            .starts_with(std::to_string(features.version.major) + "." + std::to_string(features.version.minor)));
  CHECK(features.io_uring == features.io_uring_reason.empty());
  if (harness::emulated()) SKIP_CASE("the emulator reads SO_PASSRIGHTS but does not set it");
  check_wrappers_agree(features);
}

TEST_CASE("a pretended 5.15 lacks what came later, and the wrappers answer as it would") {
  const KernelFeatures real = shmb::probe_kernel();
  const PretendedKernel old(5, 15);
  const KernelFeatures features = shmb::probe_kernel();
  CHECK(features.version == shmb::KernelVersion{5, 15});
  CHECK(features.release.ends_with("pretending 5.15"));
  CHECK_FALSE(features.exec_seal);
  CHECK_FALSE(features.peer_pidfd);
  CHECK_FALSE(features.pass_rights);
  CHECK_FALSE(features.exit_info);
  CHECK_FALSE(features.collapse);
  CHECK_FALSE(features.io_uring);
  CHECK(features.pidfd_open == real.pidfd_open);
  CHECK(features.populate == real.populate);
  check_wrappers_agree(features);

  auto ends = shmb::sys::seqpacket_pair();
  REQUIRE(ends);
  CHECK(shmb::sys::peer_pidfd((*ends)[0].get()).error().value == ENOPROTOOPT);
  CHECK(shmb::sys::refuse_descriptors((*ends)[0].get()).error().value == ENOPROTOOPT);
  CHECK(shmb::sys::pidfd_exit_info(0).error().value == ENOTTY);
}

TEST_CASE("each lost feature has a sentence that names the kernel that brought it") {
  const PretendedKernel old(5, 15);
  const KernelFeatures features = shmb::probe_kernel();
  for (const char* part : {"6.1:", "6.3:", "6.5:", "6.15:", "6.16:", "io_uring is not used: "}) {
    CAPTURE(part);
    CHECK(has_loss(features, part));
  }
  CHECK_FALSE(has_loss(features, "5.14"));
}

TEST_CASE("a pretended 6.1 has huge pages but neither the later socket options nor the exec seal") {
  const KernelFeatures real = shmb::probe_kernel();
  const PretendedKernel old(6, 1);
  const KernelFeatures features = shmb::probe_kernel();
  CHECK(features.collapse == real.collapse);
  CHECK(features.io_uring == real.io_uring);
  CHECK_FALSE(features.exec_seal);
  CHECK_FALSE(features.peer_pidfd);
  CHECK_FALSE(features.exit_info);
  check_wrappers_agree(features);
}

TEST_CASE("each version brings its feature and not the one before it") {
  const KernelFeatures real = shmb::probe_kernel();
  struct Step {
    int major, minor;
    bool KernelFeatures::* feature;
  };
  for (const Step& step : {Step{5, 14, &KernelFeatures::populate},
                           {6, 1, &KernelFeatures::collapse},
                           {6, 3, &KernelFeatures::exec_seal},
                           {6, 5, &KernelFeatures::peer_pidfd},
                           {6, 15, &KernelFeatures::exit_info},
                           {6, 16, &KernelFeatures::pass_rights}}) {
    CAPTURE(step.major);
    CAPTURE(step.minor);
    {
      const PretendedKernel with(step.major, step.minor);
      CHECK(shmb::probe_kernel().*step.feature == real.*step.feature);
    }
    const PretendedKernel without(step.major, step.minor - 1);
    CHECK_FALSE(shmb::probe_kernel().*step.feature);
  }
}

TEST_CASE("6.13 and 6.14 know the ioctl but not the exit status") {
  const PretendedKernel old(6, 14);
  CHECK(shmb::sys::pidfd_exit_info(0).error().value == EINVAL);
}

TEST_CASE("kernel() follows the pretended version, and references stay good") {
  const KernelFeatures& real = shmb::kernel();
  CHECK(&shmb::kernel() == &real);
  const std::string release = real.release;
  {
    const PretendedKernel old(5, 15);
    CHECK(shmb::kernel().version == shmb::KernelVersion{5, 15});
    CHECK_FALSE(shmb::kernel().exec_seal);
  }
  CHECK(&shmb::kernel() == &real);
  CHECK(real.release == release);
}

TEST_CASE("a refused io_uring is a loss with its reason") {
  for (const int refusal : {ENOSYS, EPERM, ENOMEM}) {
    const harness::Injected refused(Call::io_uring_setup, refusal);
    const KernelFeatures features = shmb::probe_kernel();
    CHECK_FALSE(features.io_uring);
    CHECK_FALSE(features.io_uring_reason.empty());
    CHECK(has_loss(features, features.io_uring_reason));
  }
}

TEST_CASE("a hidden pidfd_open is a loss, and nothing that needs it is promised") {
  const harness::Injected hidden(Call::pidfd_open, ENOSYS, 1, -1);
  const KernelFeatures features = shmb::probe_kernel();
  CHECK_FALSE(features.pidfd_open);
  CHECK_FALSE(features.exit_info);
  CHECK(has_loss(features, "pidfd_open is missing or hidden"));
}

TEST_CASE("the probe leaves nothing behind when calls inside it fail") {
  for (const Call call : {Call::pidfd_info, Call::madvise, Call::pidfd_open}) {
    const harness::Injected failing(call, EIO, 1, -1);
    const KernelFeatures features = shmb::probe_kernel();
    CHECK_FALSE(features.losses.empty());
  }
}
