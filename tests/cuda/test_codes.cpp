// SPDX-License-Identifier: Apache-2.0
// Every code that GPU memory has of its own is produced once, by what a user would do to get it, and its sentence names
// what to change. A code of the header without a line here fails the last case.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "client/calls/gpu_calls.hpp"
#include "tests/cuda/meeting.hpp"
#include "tests/support/session.hpp"

namespace cuda_tests {
namespace {

struct Outcome {
  Status status = Status::ok;
  std::string sentence;
};
template <class T>
Outcome outcome_of(const shmbroker::Result<T>& result) {
  return {status_of(result), sentence_of(result)};
}

struct Producing {
  Status status;
  const char* advice;  // in the sentence
  std::vector<std::pair<const char*, const char*>> environment;
  Outcome (*produce)(const Meeting&);
};

Outcome allocate_failing(const Meeting& meeting, const char* injected) {
  auto session = meeting.member();
  (void)gpu::devices();
  const fakecuda::Injected failing(injected);
  return outcome_of(gpu::Region::try_allocate(session, kMiB));
}
Outcome import_failing(const Meeting& meeting, const char* injected) {
  auto session = meeting.member();
  auto region = gpu::Region::allocate(session, kMiB);
  region.publish();
  const fakecuda::Injected failing(injected);
  return outcome_of(gpu::Region::try_import(session, region.id()));
}
Outcome ask_devices(const Meeting&) { return outcome_of(gpu::try_devices()); }

// A session of the inside of the library, with its GPU named, which can say what the public face never would.
struct Inside {
  explicit Inside(const Meeting& meeting) : session(support::must(support::try_open(meeting.broker.socket()))) {
    const auto known = gpu::devices();
    std::memcpy(uuid.data(), known[0].uuid, uuid.size());
    (void)support::must(
        shmb::client::gpu_device(*session, uuid, known[0].pci, -1, shmb::client::Deadline::after(60'000'000'000)));
    shmb::client::Token token;
    std::memcpy(token.bytes.data(), meeting.group.token.data(), 16);
    (void)support::must(session->join_group(token, 0, shmb::client::Deadline::after(60'000'000'000)));
  }
  // Files that only look like exports, or true ones.
  shmbroker::RegionId publish(std::uint32_t flags, int keeper, int share, std::uint64_t chunks = 1) {
    shmb::client::GpuPublish wish;
    wish.bytes = chunks * 2 * kMiB;
    if (chunks > 1) wish.chunk_bytes = 2 * kMiB;
    wish.uuid = uuid;
    wish.flags = flags;
    wish.chunks = {{keeper, share}};
    auto made =
        support::must(shmb::client::gpu_publish(*session, {&wish, 1}, shmb::client::Deadline::after(60'000'000'000)));
    const auto ref = support::must(std::move(made.front())).region;
    return {{}, ref.id, ref.generation};
  }
  shmbroker::RegionId publish_true(std::uint32_t flags) {
    const Worker worker;
    shmb::cuda::AllocationProp prop;
    prop.type = shmb::cuda::kPinnedAllocation;
    prop.requested_handle_types = shmb::cuda::kPosixFd;
    prop.location = {shmb::cuda::kDeviceLocation, 0};
    shmb::cuda::MemHandle handle = 0;
    int fds[2] = {-1, -1};
    if ((*worker.driver)->mem_create(&handle, 2 * kMiB, &prop, 0) != 0) std::abort();
    for (int& fd : fds)
      if ((*worker.driver)->mem_export(&fd, handle, shmb::cuda::kPosixFd, 0) != 0) std::abort();
    (*worker.driver)->mem_release(handle);
    const auto id = publish(flags, fds[0], fds[1]);
    for (const int fd : fds) ::close(fd);
    return id;
  }
  std::shared_ptr<shmb::client::Session> session;
  shmb::client::GpuUuid uuid{};
};

// Until it is refused for another reason than that its end was not heard of yet.
template <class Ask>
Outcome once_it_is(Status status, Ask ask) {
  Outcome seen;
  (void)eventually([&] {
    seen = ask();
    return seen.status == status;
  });
  return seen;
}

const std::vector<Producing>& all_producing() {
  static const std::vector<Producing> all = {
      {Status::no_driver, "Install it", {{"SHMB_LIBCUDA", "/nowhere/libcuda.so.1"}}, ask_devices},
      {Status::stub_driver, "LD_LIBRARY_PATH", {{"FAKECUDA_STUB", "1"}}, ask_devices},
      {Status::driver_too_old, "update the driver", {{"FAKECUDA_DRIVER_VERSION", "11080"}}, ask_devices},
      {Status::no_device, "CUDA_VISIBLE_DEVICES", {{"CUDA_VISIBLE_DEVICES", ""}}, ask_devices},
      {Status::device_not_found,
       "CUDA_VISIBLE_DEVICES",
       {},
       [](const Meeting& meeting) {
         auto session = meeting.member();
         gpu::AllocateOptions elsewhere;
         elsewhere.uuid = gpu::Uuid{};
         return outcome_of(gpu::Region::try_allocate(session, kMiB, elsewhere));
       }},
      {Status::device_not_visible,
       "CUDA_VISIBLE_DEVICES",
       {},
       [](const Meeting& meeting) { return import_failing(meeting, "cuMemImportFromShareableHandle:1:101"); }},
      {Status::different_mig_instance,
       "use one in the same instance",
       {{"FAKECUDA_MIG", "1"}},
       [](const Meeting& meeting) { return import_failing(meeting, "cuMemImportFromShareableHandle:1:801"); }},
      {Status::not_supported,
       "this device or driver cannot",
       {},
       [](const Meeting& meeting) { return allocate_failing(meeting, "cuMemCreate:1:801"); }},
      {Status::bad_fd,
       "publish it again",
       {},
       [](const Meeting& meeting) { return import_failing(meeting, "cuMemImportFromShareableHandle:1:400"); }},
      {Status::not_exportable,
       "copy it into a region",
       {},
       [](const Meeting& meeting) {
         auto session = meeting.member();
         const Worker worker;
         shmb::cuda::MemHandle handle = 0;
         shmb::cuda::AllocationProp prop;  // no handle type was asked for
         prop.type = shmb::cuda::kPinnedAllocation;
         prop.location = {shmb::cuda::kDeviceLocation, 0};
         shmb::cuda::Address at = 0;
         if ((*worker.driver)->mem_create(&handle, 2 * kMiB, &prop, 0) != 0 ||
             (*worker.driver)->address_reserve(&at, 2 * kMiB, 0, 0, 0) != 0 ||
             (*worker.driver)->mem_map(at, 2 * kMiB, 0, handle, 0) != 0)
           std::abort();
         return outcome_of(gpu::Lease::try_lend(session, at, kMiB, {}));
       }},
      {Status::too_small,
       "other processes may have it mapped",
       {},
       [](const Meeting& meeting) { return import_failing(meeting, "cuMemMap:1:1"); }},
      {Status::out_of_memory,
       "free memory",
       {},
       [](const Meeting& meeting) {
         auto session = meeting.member();
         return outcome_of(gpu::Region::try_allocate(session, 1024 * kMiB));
       }},
      {Status::not_permitted,
       "IMEX, MPS and the container's policy",
       {},
       [](const Meeting& meeting) { return allocate_failing(meeting, "cuMemCreate:1:800"); }},
      {Status::context_poisoned,
       "needs a new process",
       {},
       [](const Meeting& meeting) {
         auto session = meeting.member();
         (void)gpu::devices();
         {
           const fakecuda::Injected failing("cuMemsetD8Async:1:700");
           (void)gpu::Region::try_allocate(session, kMiB);
         }
         return outcome_of(gpu::Region::try_allocate(session, kMiB));
       }},
      {Status::device_lost,
       "Xid",
       {},
       [](const Meeting& meeting) { return allocate_failing(meeting, "cuMemCreate:1:999,cuMemGetInfo:1:999"); }},
      {Status::mps,
       "MPS control daemon",
       {},
       [](const Meeting& meeting) { return allocate_failing(meeting, "cuMemCreate:1:807"); }},
      {Status::already_registered,
       "use that registration",
       {},
       [](const Meeting& meeting) {
         auto session = meeting.member();
         const Worker worker;
         auto region = session.create(kMiB);
         if ((*worker.driver)->host_register(region.data(), kMiB, 0) != 0) std::abort();
         const auto refused = outcome_of(gpu::PinnedHost::try_pin(region));
         (*worker.driver)->host_unregister(region.data());
         return refused;
       }},
      {Status::forked_child,
       "start it with exec",
       {},
       [](const Meeting&) {
         (void)gpu::devices();
         int ends[2];
         if (::pipe(ends) != 0) std::abort();
         if (::fork() == 0) {
           const Outcome refused = outcome_of(gpu::try_devices());
           const auto status = static_cast<unsigned char>(refused.status);
           if (::write(ends[1], &status, 1) != 1 ||
               ::write(ends[1], refused.sentence.data(), refused.sentence.size()) < 0)
             ::_exit(1);
           ::_exit(0);
         }
         ::close(ends[1]);
         unsigned char status = 0;
         char text[600] = {};
         if (::wait(nullptr) < 0 || ::read(ends[0], &status, 1) != 1 || ::read(ends[0], text, sizeof text - 1) < 0)
           std::abort();
         ::close(ends[0]);
         return Outcome{static_cast<Status>(status), text};
       }},
      {Status::producer_dead,
       "Open the name again",
       {},
       [](const Meeting& meeting) {
         auto session = meeting.member(), other = meeting.member();
         std::optional<gpu::Timeline> mine = gpu::Timeline::create(session, {.name = "t"});
         auto theirs = gpu::Timeline::try_open(other, "t");
         if (!theirs) return outcome_of(theirs);
         mine.reset();
         return outcome_of(theirs->try_wait_host(5, 0, std::chrono::seconds(60)));
       }},
      {Status::generation_mismatch,
       "list again",
       {},
       [](const Meeting& meeting) {
         auto session = meeting.member();
         auto region = gpu::Region::allocate(session, kMiB);
         shmbroker::RegionId id = region.publish();
         ++id.generation;
         return outcome_of(gpu::Region::try_import(session, id));
       }},
      {Status::detached,
       "only processes that have left the broker",
       {},
       [](const Meeting& meeting) {
         auto session = meeting.member();
         std::optional<Inside> inside(meeting);
         const auto id = inside->publish_true(0);
         inside.reset();  // this process, which lives, may still have it mapped
         return once_it_is(Status::detached, [&] { return outcome_of(gpu::Region::try_import(session, id)); });
       }},
      {Status::device_not_pinned,
       "nvidia-persistenced",
       {},
       [](const Meeting&) {
         harness::BrokerOptions options;
         options.seam = "gpu=/nowhere";  // not where this process' driver has its nodes
         const harness::BrokerFixture broker(options);
         auto session = connect(broker.socket());
         auto region = gpu::Region::allocate(session, kMiB);
         return outcome_of(region.try_publish());
       }},
      {Status::region_poisoned,
       "publish its successor",
       {},
       [](const Meeting& meeting) {
         auto session = meeting.member();
         std::optional<Inside> writer(meeting);
         const auto id = writer->publish_true(SHMBW_GPU_PUBLISH_WRITING | SHMBW_GPU_PUBLISH_MANY_WRITERS);
         auto reader = gpu::Region::import(session, id);
         writer.reset();
         gpu::ImportOptions writing;
         writing.access = gpu::Access::read_write;
         return once_it_is(Status::region_poisoned,
                           [&] { return outcome_of(gpu::Region::try_import(session, id, writing)); });
       }},
      {Status::region_invalid,
       "must publish it again",
       {},
       [](const Meeting& meeting) {
         auto session = meeting.member();
         Inside inside(meeting);
         const int keeper = ::memfd_create("fakecuda:junk", MFD_CLOEXEC);
         const int share = ::memfd_create("fakecuda:junk", MFD_CLOEXEC);
         const auto id = inside.publish(0, keeper, share, 2);  // and the second chunk never comes
         const shmbw_region_ref ref{id.id, id.generation, 0};
         const auto soon = shmb::client::Deadline::after(60'000'000'000);
         // A ticket keeps it when its publisher lets go.
         (void)support::must(shmb::client::make_ticket(*inside.session, ref, SHMBW_RIGHT_MAP_READ, 1, 0, soon));
         const shmb::client::GpuRelease back{ref, 1, false};
         support::must(shmb::client::gpu_release(*inside.session, {&back, 1}, soon));
         return outcome_of(gpu::Region::try_import(session, id));
       }},
      {Status::other_kind,
       "open it with the functions for GPU regions",
       {},
       [](const Meeting& meeting) {
         auto session = meeting.member();
         auto region = gpu::Region::allocate(session, kMiB);
         return outcome_of(session.try_attach(region.publish()));
       }},
      {Status::driver_failed,
       "documentation",
       {},
       [](const Meeting& meeting) { return allocate_failing(meeting, "cuMemCreate:1:205"); }},
      {Status::pinned,
       "unpin it, then publish",
       {},
       [](const Meeting& meeting) {
         auto session = meeting.member();
         auto region = session.create(kMiB);
         const auto pin = gpu::PinnedHost::pin(region);
         shmb_error error;
         const int status = shmb_publish(region.c(), 0, &error);
         return Outcome{static_cast<Status>(status), error.sentence};
       }},
  };
  return all;
}

struct KnownCode {
  int code;
  const char* name;
};
// As the protocol's tables say: GPU memory has the numbers from its first one on.
constexpr KnownCode kKnownCodes[] = {
#define CODES_LINE(name, value, text) {value, #name},
    SHMB_STATUS_TABLE(CODES_LINE)
#undef CODES_LINE
};

}  // namespace

TEST_CASE("each code of GPU memory comes of what its line says, with a sentence that tells what to do") {
  harness::BrokerOptions options;
  options.expect_empty_books = false;  // what a process leaves that lives on without its session
  const Meeting meeting(options);
  for (const Producing& one : all_producing()) {
    const std::string name = shmb_status_name(static_cast<int>(one.status));
    CAPTURE(name);
    CHECK(Child::run([&] {
            for (const auto& [variable, value] : one.environment) ::setenv(variable, value, 1);
            const Outcome seen = one.produce(meeting);
            if (seen.status != one.status || !seen.sentence.contains(one.advice))
              std::fprintf(stderr, "%s: got %s: %s\n", name.c_str(), shmb_status_name(static_cast<int>(seen.status)),
                           seen.sentence.c_str());
            ACTOR_CHECK(seen.status == one.status);
            ACTOR_CHECK(seen.sentence.contains(one.advice));
            return 0;
          }).wait() == 0);
  }
}

TEST_CASE("no code of GPU memory is without a line that produces it") {
  std::set<int> produced;
  for (const Producing& one : all_producing()) produced.insert(static_cast<int>(one.status));
  int known = 0;
  for (const KnownCode& one : kKnownCodes) {
    if (one.code < SHMB_E_NO_DRIVER) continue;
    ++known;
    CAPTURE(one.name);
    CHECK(produced.contains(one.code));
  }
  CHECK(known >= 27);
}

}  // namespace cuda_tests
