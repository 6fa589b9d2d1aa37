// SPDX-License-Identifier: Apache-2.0
// See sys_keep.hpp.
#include "base/sys_keep.hpp"

#include <fcntl.h>
#include <linux/prctl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "base/sys_call.hpp"

namespace shmb::sys {

namespace {

// clone(2) and not clone3(2): a seccomp filter cannot see the flags of the latter.
long clone_process(unsigned long flags, pid_t* parents, pid_t* childs) {
#if defined(__x86_64__)
  return ::syscall(SYS_clone, flags, 0UL, parents, childs, 0UL);
#elif defined(__aarch64__)
  return ::syscall(SYS_clone, flags, 0UL, parents, 0UL, childs);
#else
#error "the order of the arguments of clone(2)"
#endif
}

}  // namespace

Sys<pid_t> fork_sharing_descriptors(std::atomic<pid_t>& noted) {
  static_assert(sizeof(std::atomic<pid_t>) == sizeof(pid_t) && std::atomic<pid_t>::is_always_lock_free);
  // libc keeps the thread's tid at this address and does not learn of a clone that it has not made.
  pid_t* own_tid = nullptr;
  SHMB_TRY_VOID(call_void(fault::Call::prctl, [&] { return ::prctl(PR_GET_TID_ADDRESS, &own_tid, 0UL, 0UL, 0UL); }));
  if (own_tid == nullptr) return sys_error(ENODATA);
  SHMB_TRY(child, call(fault::Call::clone, [&] {
             return clone_process(
                 CLONE_FILES | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD,
                 reinterpret_cast<pid_t*>(&noted), own_tid);
           }));
  return static_cast<pid_t>(child);
}

Sys<void> leave_last_word(LastWord& last) {
  static robust_list_head head;
  head.list.next = reinterpret_cast<robust_list*>(&last.next);
  head.futex_offset = static_cast<long>(offsetof(LastWord, word)) - static_cast<long>(offsetof(LastWord, next));
  head.list_op_pending = nullptr;
  last.next = &head.list;
  SHMB_TRY_VOID(call_void(fault::Call::futex, [&] { return ::syscall(SYS_set_robust_list, &head, sizeof head); }));
  last.word.store(static_cast<std::uint32_t>(::getpid()) | FUTEX_WAITERS, std::memory_order_release);
  return {};
}

void* memory_shared_with_children(std::size_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

void wait_while(std::atomic<std::uint32_t>& word, std::uint32_t value, std::int64_t timeout) {
  const timespec time{timeout / 1'000'000'000, timeout % 1'000'000'000};
  (void)::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, value, &time, nullptr, 0);
}

char process_state(pid_t pid) {
  char path[32], text[512];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t length = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (length <= 0) return 0;
  text[length] = '\0';
  const char* const end = std::strrchr(text, ')');  // the name before it may have any bytes
  return end != nullptr && end[1] == ' ' ? end[2] : '\0';
}

ProcessName process_name() {
  ProcessName name;
  (void)::prctl(PR_GET_NAME, name.text, 0UL, 0UL, 0UL);
  return name;
}

void set_process_name(const ProcessName& name) { (void)::prctl(PR_SET_NAME, name.text, 0UL, 0UL, 0UL); }

}  // namespace shmb::sys
