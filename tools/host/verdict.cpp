// SPDX-License-Identifier: Apache-2.0
// See verdict.hpp.
#include "tools/host/verdict.hpp"

#include <fcntl.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "base/sys_host.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "tools/host/removal.hpp"

namespace shmb::host {
namespace {

constexpr int kAskAgain = 4;
constexpr int kPatience = 30;  // repeats that are free because another tool was asking
constexpr std::int64_t kFirstRest = 10'000'000;
constexpr std::int64_t kClockSlack = 2;  // seconds: start times are cut to clock ticks, boot time to seconds

std::string user_of(std::uint32_t uid) {
  static std::map<std::uint32_t, std::string> known;
  auto [entry, added] = known.try_emplace(uid);
  if (added) {
    const passwd* found = ::getpwuid(uid);
    entry->second = found != nullptr ? found->pw_name : "uid " + std::to_string(uid);
  }
  return entry->second;
}

std::string age_text(std::int64_t seconds) { return seconds == 0 ? "0s" : format_duration(seconds * 1'000'000'000); }

class Judge {
 public:
  Judge(Inventory& inventory, const Patterns& patterns, const JudgeOptions& options)
      : inventory_(inventory), patterns_(patterns), options_(options) {
    read_boot_time();
    for (const Process& process : inventory_.processes) by_pid_.emplace(process.pid, &process);
  }

  void run() {
    for (Object& it : inventory_.objects) decide(it);
    int patience = kPatience;
    for (int again = 0; again < kAskAgain && !refused_.empty();) {
      options_.rest(kFirstRest << again);
      const std::set<Key> in_question = files_of_tools();
      const bool met = std::ranges::any_of(refused_, [&](const Object* it) { return in_question.contains(it->key); });
      for (Object* it : std::exchange(refused_, {})) {
        it->evidence.clear();
        it->verdict = Verdict::idle;
        decide(*it);
      }
      if (!met || --patience < 0) ++again;
    }
  }

 private:
  void read_boot_time() {
    auto text = sys::read_file("/proc/stat", 16 << 20);
    const std::size_t at = text ? text->find("\nbtime ") : std::string::npos;
    if (at != std::string::npos) std::from_chars(text->data() + at + 7, text->data() + text->size(), boot_);
  }

  // --- other tools that look at the same moment ---

  // A tool that asks the kernel has the file open meanwhile. The name of a program is no proof: it decides only where
  // to ask again, and a verdict never rests on it.
  bool is_tool(const std::string& program) const {
    const Process* self = inventory_.find(::getpid());
    return program == "shmbroker" || (self != nullptr && program == self->program);
  }

  static std::string last_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

  // The files for which a lease was refused.
  std::set<Key> files_of_tools() const {
    std::set<Key> out;
    std::set<std::string> names;
    for (const Object* it : refused_)
      for (const std::string& name : it->names) names.insert(last_name(name));
    auto proc = Proc::open("/proc");
    auto pids = proc ? proc->pids() : sys_error(ENOENT);
    if (!pids) return out;
    for (const pid_t pid : *pids) {
      auto program = pid == ::getpid() ? sys_error(ENOENT) : proc->text(std::to_string(pid) + "/comm");
      if (!program || !is_tool(program->substr(0, program->find('\n')))) continue;
      (void)proc->descriptors(pid, [&](const Descriptor& it) {
        if (!names.contains(last_name(it.link))) return;  // stat(2) of another file may hang
        if (auto facts = sys::file_stat_at(AT_FDCWD, proc->path(pid, "fd/" + it.number).c_str(), true))
          out.insert({facts->device, facts->inode});
      });
    }
    return out;
  }

  bool is_gone_now(const Process& process) const {
    auto proc = Proc::open("/proc");
    auto now = proc ? proc->process(process.pid) : sys_error(ESRCH);
    return now ? now->start != process.start : is_gone(now.error());
  }

  // Whether each holder that was seen is a tool that may have asked, or has ended since.
  bool may_be_in_question(const Object& it) {
    return std::ranges::all_of(it.holders, [&](const Holder& holder) {
      auto [entry, added] = passing_.try_emplace(holder.process);
      const Process& process = inventory_.processes[holder.process];
      if (added) entry->second = is_tool(process.program) || is_gone_now(process);
      return entry->second;
    });
  }

  // Asks the kernel about a file that has its own name. A file that a gc has set aside is not asked about, because an
  // open would break the lease.
  std::optional<bool> ask(const Object& it, std::string& reason) const {
    reason = "the kernel was not asked";
    if (!options_.ask_kernel || it.names.empty() || is_set_aside(it.name)) return std::nullopt;
    return kernel_says_held(inventory_, it, reason);
  }

  // The pids that processes of inner PID namespaces (containers) have there: a name made in a container holds such a
  // pid.
  void find_inner_pids() {
    inner_known_ = true;
    std::uint64_t own = 0;
    if (const Process* self = inventory_.find(::getpid())) own = self->pid_ns;
    for (const Process& process : inventory_.processes) {
      if (process.pid_ns == own && own != 0) continue;
      // All users may read it, also for processes whose namespaces may not be read.
      auto text = sys::read_file(("/proc/" + std::to_string(process.pid) + "/status").c_str());
      const std::size_t at = text ? text->find("\nNSpid:") : std::string::npos;
      if (at == std::string::npos) continue;
      std::string_view line = std::string_view(*text).substr(at + 7);
      line = line.substr(0, line.find('\n'));
      // Its number here, then one for each namespace further in.
      for (std::size_t at_number = 0; (at_number = line.find_first_not_of(" \t", at_number)) != line.npos;) {
        pid_t pid = 0;
        const char* end = std::from_chars(line.data() + at_number, line.data() + line.size(), pid).ptr;
        if (end == line.data() + at_number) break;
        at_number = static_cast<std::size_t>(end - line.data());
        if (pid != process.pid) inner_.emplace(pid, &process);
      }
    }
  }

  std::int64_t started(const Process& process) const {
    static const long ticks = ::sysconf(_SC_CLK_TCK);
    return boot_ + static_cast<std::int64_t>(process.start) / ticks;
  }

  // Whether the process with the creator's number can have made the object.
  bool can_be_creator(const Process& process, const Object& it) const {
    return boot_ == 0 || started(process) <= it.changed + kClockSlack;
  }

  enum class Creator { unknown, alive, dead };
  Creator creator_of(Object& it, pid_t pid) {
    const std::string number = std::to_string(pid);
    if (const auto found = by_pid_.find(pid); found != by_pid_.end()) {
      if (can_be_creator(*found->second, it)) {
        it.creator_text = user_of(found->second->uid) + " " + number + " " + found->second->program;
        it.evidence.push_back("its creator may live: process " + number + " (" + found->second->program + ")");
        return Creator::alive;
      }
      it.evidence.push_back("process " + number + " started after the last change: the number was used again");
    } else {
      it.evidence.push_back("no process " + number + " lives");
    }
    if (inventory_.hidden) {
      it.creator_text = number + " unknown";
      it.evidence.push_back("its creator may be one of the processes that /proc hides");
      return Creator::unknown;
    }
    // The kernel tells a segment's creator by its number in this PID namespace, and of none that is outside of it.
    if (it.kind == Kind::sysv) {
      it.creator_text = user_of(it.uid) + " " + number + " dead";
      return Creator::dead;
    }
    if (!inner_known_) find_inner_pids();
    const auto [first, last] = inner_.equal_range(pid);
    for (auto inner = first; inner != last; ++inner)
      if (can_be_creator(*inner->second, it)) {
        it.creator_text = user_of(inner->second->uid) + " " + number + " in a container";
        it.evidence.push_back("its creator may live: process " + std::to_string(inner->second->pid) + " (" +
                              inner->second->program + ") is " + number + " in its PID namespace");
        return Creator::alive;
      }
    if (inventory_.nested) {
      it.creator_text = number + " unknown";
      it.evidence.push_back("its creator may live outside this PID namespace");
      return Creator::unknown;
    }
    it.creator_text = user_of(it.uid) + " " + number + " dead";
    return Creator::dead;
  }

  // Of several pids, one that may live is enough to keep the object.
  Creator creator_of_any(Object& it, const std::vector<Patterns::Match>& matches) {
    std::set<pid_t> pids;
    if (it.creator != 0) pids.insert(it.creator);
    for (const auto& match : matches)
      if (match.creator) pids.insert(*match.creator);
    if (pids.empty()) it.creator_text = user_of(it.uid);
    Creator out = pids.empty() ? Creator::unknown : Creator::dead;
    for (const pid_t pid : pids) {
      const Creator one = creator_of(it, pid);
      if (one == Creator::alive) return one;
      if (one == Creator::unknown) out = one;
    }
    return out;
  }

  void decide(Object& it) {
    // A file with hard links is one object, and each of its names may say something about it.
    const auto matches = patterns_.matches(it);
    for (const auto& match : matches) {
      if (it.glob == match.pattern->glob) continue;
      if (it.glob.empty()) {
        it.program = match.pattern->program;
        it.glob = match.pattern->glob;
      }
      it.evidence.push_back("its name matches " + shmb::quoted(match.pattern->glob) + ", as " + match.pattern->program +
                            " uses");
    }
    if (it.names.size() > 1) it.evidence.push_back("it has " + std::to_string(it.names.size()) + " names");
    if (is_held(it)) {
      it.verdict = Verdict::held;
      return;
    }
    if (it.verdict == Verdict::unseen) return;
    const Creator creator = creator_of_any(it, matches);
    if (creator == Creator::dead) {
      if (kernel_objects(it)) return;
      it.verdict = Verdict::orphan;
      it.evidence.push_back("nobody holds it and its creator is dead: orphan");
      return;
    }
    const std::int64_t age = inventory_.now - it.changed;
    const auto keeper = std::ranges::find_if(matches, [](const auto& match) { return match.pattern->keep; });
    if (keeper != matches.end()) {
      it.evidence.push_back(keeper->pattern->program + " comes back for such objects: idle");
    } else if (!matches.empty() && creator == Creator::unknown && age >= options_.stale_after) {
      if (kernel_objects(it)) return;
      it.verdict = Verdict::stale;
      it.evidence.push_back("nobody holds it, its last change was " + age_text(age) + " ago, and " + it.program +
                            " is known to leave such objects behind: stale");
      return;
    } else if (!matches.empty() && creator == Creator::unknown) {
      it.evidence.push_back("nobody holds it, but its last change is less than " + age_text(options_.stale_after) +
                            " ago: idle");
    } else {
      it.evidence.push_back("nobody holds it, and nothing says that it is lost: idle");
    }
    it.verdict = Verdict::idle;
  }

  // A descriptor in transit in a socket, or known only to an io_uring, is in no table of /proc. So an object that the
  // kernel reports as held is never called lost.
  bool kernel_objects(Object& it) {
    if (!options_.ask_kernel || it.names.empty() || !inventory_.saw_all()) return false;  // else it was asked already
    std::string reason;
    if (ask(it, reason) != true) return false;
    refused_.push_back(&it);
    it.evidence.push_back("but the kernel refuses a write lease: it is held where /proc shows no holder");
    it.verdict = Verdict::held;
    return true;
  }

  // Sets `unseen` if the question cannot be answered.
  bool is_held(Object& it) {
    std::string reason;
    if (!it.holders.empty()) {
      if (may_be_in_question(it)) {
        const auto answer = ask(it, reason);
        if (answer == false) {
          it.holders.clear();
          it.evidence.push_back("the kernel grants a write lease: nobody has it open or mapped");
          return false;
        }
        if (answer == true) refused_.push_back(&it);
      }
      it.evidence.push_back(it.holders.size() == 1 ? "1 process holds it"
                                                   : std::to_string(it.holders.size()) + " processes hold it");
      return true;
    }
    if (it.kind == Kind::sysv) {
      if (it.attached != 0) it.evidence.push_back("the kernel counts " + std::to_string(it.attached) + " attached");
      else it.evidence.push_back("the kernel counts nobody attached");
      return it.attached != 0;
    }
    if (it.names.empty()) {  // a memfd or a deleted file: a holder that ended while the scan ran
      it.evidence.push_back("its holder ended during the scan");
      return true;
    }
    if (inventory_.saw_all()) {
      it.evidence.push_back("no process has it open or mapped");
      return false;
    }
    const auto answer = ask(it, reason);
    if (answer == true) refused_.push_back(&it);
    if (answer) {
      it.evidence.push_back(*answer ? "the kernel refuses a write lease: an unseen process has it open or mapped"
                                    : "the kernel grants a write lease: nobody has it open or mapped");
      return *answer;
    }
    it.evidence.push_back("no holder was seen, but " + inventory_.blind.front() + ", and " + reason + ": unseen");
    it.verdict = Verdict::unseen;
    return false;
  }

  Inventory& inventory_;
  const Patterns& patterns_;
  const JudgeOptions& options_;
  std::map<pid_t, const Process*> by_pid_;
  std::multimap<pid_t, const Process*> inner_;
  bool inner_known_ = false;
  std::vector<Object*> refused_;         // those for which a lease was refused
  std::map<std::size_t, bool> passing_;  // by process: a tool like this one, or ended since
  std::int64_t boot_ = 0;
};

}  // namespace

std::string kind_text(Kind kind) {
  constexpr const char* names[] = {"file", "semaphore", "hugetlb", "sysv", "region", "memfd", "deleted", "anonymous"};
  return names[static_cast<std::size_t>(kind)];
}

std::string verdict_text(Verdict verdict) {
  constexpr const char* names[] = {"held", "orphan", "stale", "idle", "unseen"};
  return names[static_cast<std::size_t>(verdict)];
}

std::optional<bool> kernel_says_held(const Inventory& inventory, const Object& object, std::string& reason) {
  auto file = open_beneath(inventory.mounts[object.mount].mount, object.name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
  if (!file && file.error().value == EWOULDBLOCK) return true;  // another process has a lease
  if (!file) {
    reason = "it cannot be opened: " + errno_text(file.error().value);
    return std::nullopt;
  }
  auto facts = sys::file_stat(file->get());
  if (!facts || facts->device != object.key.space || facts->inode != object.key.id) {
    reason = "another file has taken its name";
    return std::nullopt;
  }
  auto leased = sys::take_write_lease(file->get());
  if (leased) {
    (void)sys::give_lease_up(file->get());
    return false;
  }
  if (leased.error().value == EAGAIN) return true;
  reason = "the kernel gives no lease: " + errno_text(leased.error().value);
  return std::nullopt;
}

void judge(Inventory& inventory, const Patterns& patterns, const JudgeOptions& options) {
  Judge(inventory, patterns, options).run();
}

}  // namespace shmb::host
