// SPDX-License-Identifier: Apache-2.0
// The state of the fake driver in this process, and the way into each of its functions. One lock over everything; what
// waits (streams) does so without it. Calls that a real driver leaves undefined are allowed here and noted as a
// violation, so that a test which looks at the audit fails.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fakecuda/control.hpp"
#include "tests/fakecuda/machine.hpp"

namespace shmb::cuda {
struct CUctx_st {
  int ordinal = 0;
  int retains = 0;  // of a primary one; of one of cuCtxCreate 1 until it is destroyed
  bool primary = true;
  unsigned long long id = 0;
  Code sticky = 0;  // for ever: a process that faulted can only be replaced
  bool usable() const { return retains > 0; }
};
}  // namespace shmb::cuda

namespace fakecuda {

// One allocation of device memory: a memfd, freed by the kernel when nobody has it open or mapped.
class Physical {
 public:
  Physical(int fd, MemoryName name) : fd_(fd), name_(std::move(name)) {}
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  ~Physical();
  int fd() const { return fd_; }
  const MemoryName& name() const { return name_; }
  std::size_t bytes() const { return name_.bytes; }

 private:
  int fd_;
  MemoryName name_;
};

// Where the bytes of a mapped range really are: in a second mapping, so that the host cannot reach them through the
// device's address.
class Shadow {
 public:
  Shadow(void* data, std::size_t bytes, bool owned) : data_(data), bytes_(bytes), owned_(owned) {}
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;
  ~Shadow();
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_;
  std::size_t bytes_;
  bool owned_;
};

// A position in an export that says that its holder has spoilt it: of all that an export has here this alone belongs to
// one open file.
inline constexpr off_t kSpoiltAt = 0x5901;

enum class Kind { vmm, plain, opened, host };

struct Mapping {
  Kind kind = Kind::vmm;
  std::size_t bytes = 0;
  std::shared_ptr<Physical> physical;  // null: host memory
  std::shared_ptr<Shadow> shadow;
  std::map<int, int> access;  // by ordinal: kReadAccess, kReadWriteAccess; plain, opened and host: everything
  std::uint64_t id = 0;
  Context context = nullptr;  // plain, opened, host: whose it is
  int ordinal = 0;
  void* host = nullptr;    // host: as registered
  bool read_only = false;  // host
  int pin = -1;            // host: an io_uring that holds the pages, as a GPU would
  std::string opened_as;   // opened: what the handle named
  int opens = 0;           // opened
};

struct Failure {
  std::string function;
  long at = 1;  // which call
  Code code = 0;
  bool for_ever = false;
};

struct State {
  std::mutex mutex;
  Machine machine;
  bool initialised = false;
  pid_t pid = 0;  // of whoever called cuInit: nobody else may call anything

  std::map<MemHandle, std::shared_ptr<Physical>> handles;
  std::map<Address, std::size_t> reservations;
  std::map<Address, Mapping> mappings;              // by first address
  std::vector<std::unique_ptr<CUctx_st>> contexts;  // the primary one of each ordinal
  std::vector<std::unique_ptr<CUctx_st>> own;       // of cuCtxCreate; kept, so that a destroyed one is known
  std::uint64_t next_handle = 0x1000, next_memory = 1, next_id = 1;
  std::size_t streams = 0, events = 0, modules = 0, graphs = 0;

  std::vector<std::string> violations;
  std::vector<Failure> failures;
  std::map<std::string, long> calls;
  std::string before;  // which function calls `before_call` first, once
  void (*before_call)(void*) = nullptr;
  void* before_with = nullptr;
  std::atomic<long> delay_us{0};
  long watchdog_s = 60;
  int log = -1;

  const Gpu& gpu(int ordinal) const { return machine.visible[static_cast<std::size_t>(ordinal)]; }
  bool valid(int ordinal) const { return ordinal >= 0 && static_cast<std::size_t>(ordinal) < machine.visible.size(); }
  void violation(const std::string& text);
};

State& state();

using Lock = std::unique_lock<std::mutex>;
enum class Needs { nothing, driver, memory, context };  // memory: a context, on a strict machine

// Every entry point: the stub's 34, the forked child's 3, what a test wants to fail, the sticky error of the context;
// then the body, with the lock held.
Code enter(const char* function, Needs needs, const std::function<Code(State&, Lock&)>& body);

Context current_context();
// The context on top of this thread's stack; 201 in `enter` has made sure that there is one.
std::vector<Context>& context_stack();

// memory.cpp
std::shared_ptr<Physical> make_physical(State& it, int ordinal, std::size_t bytes, int handle_types, bool rdma,
                                        const char* what, Code* why);
std::shared_ptr<Shadow> shadow_of(int fd, std::size_t bytes);
Address reserve(std::size_t bytes, std::size_t alignment, Address hint);
void unreserve(Address address, std::size_t bytes);
const Mapping* mapping_at(const State& it, Address address, Address* start);

// Calls `part` for each contiguous piece of a range as device `ordinal` sees it, under the lock, at most 1 MiB at a
// time, so that what is unmapped meanwhile faults. The code is 700 where the device would fault.
Code each_part(int ordinal, Address address, std::size_t bytes, bool write,
               const std::function<void(char* data, std::size_t done, std::size_t bytes)>& part);

}  // namespace fakecuda

#define FAKECUDA_API extern "C" __attribute__((visibility("default")))
