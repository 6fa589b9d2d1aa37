// SPDX-License-Identifier: Apache-2.0
// See removal.hpp.
#include "tools/host/removal.hpp"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include "base/sys_file.hpp"
#include "base/sys_host.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "tools/host/sysv.hpp"

namespace shmb::host {
namespace {

constexpr std::string_view kAside = ".shmbroker-gc-";
constexpr int kTries = 5;
constexpr std::int64_t kFirstWait = 10'000'000;

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}
std::string last_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// The folder beside a file that holds it while it has no name. There is one for each folder of the plan, locked while
// this process lives.
class AsideFolder {
 public:
  static Result<std::unique_ptr<AsideFolder>> make(const Mount& mount, const std::string& name) {
    auto out = std::unique_ptr<AsideFolder>(new AsideFolder);
    const std::string parent = mount.reach + (name.empty() ? "" : "/" + name);
    auto above = open_beneath(mount, name, O_RDONLY | O_DIRECTORY);
    if (!above) return system_failure(above.error(), "open the folder " + shmb::quoted(parent));
    out->parent_ = std::move(*above);
    std::array<std::byte, 8> random{};
    if (auto filled = sys::random_bytes(random); !filled) return system_failure(filled.error(), "getrandom");
    out->name_ = std::string(kAside) + std::to_string(::getpid()) + "-";
    for (const std::byte byte : random) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(byte));
      out->name_ += digits;
    }
    if (auto made = sys::make_directory_at(out->parent_.get(), out->name_.c_str(), 0700); !made)
      return system_failure(made.error(), "make a folder beside it in " + shmb::quoted(parent));
    out->made_ = true;
    auto opened = sys::open_at(out->parent_.get(), out->name_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!opened) return system_failure(opened.error(), "open a folder of our own in " + shmb::quoted(parent));
    out->folder_ = std::move(*opened);
    if (auto locked = sys::lock_file(out->folder_.get()); !locked)
      return system_failure(locked.error(), "lock a folder of our own in " + shmb::quoted(parent));
    return out;
  }
  ~AsideFolder() {
    // A file that could not go back keeps the folder, and recover() finds it.
    if (made_) (void)sys::remove_at(parent_.get(), name_.c_str(), true);
  }
  AsideFolder(const AsideFolder&) = delete;
  AsideFolder& operator=(const AsideFolder&) = delete;

  int parent() const { return parent_.get(); }
  int folder() const { return folder_.get(); }

 private:
  AsideFolder() = default;
  Fd parent_, folder_;
  std::string name_;
  bool made_ = false;
};

using AsideFolders = std::map<std::pair<std::size_t, std::string>, std::unique_ptr<AsideFolder>>;  // by mount and path

struct Name {
  std::string file;  // its name in the folder
  AsideFolder* aside = nullptr;
  bool is_aside = false;
};

// One file that is being removed.
struct Leaving {
  std::size_t index = 0;  // in the caller's list
  Fd file;
  std::vector<Name> names;
  bool leased = false;
};

bool is_same(const Object& object, const sys::FileStat& facts) {
  return facts.type == sys::FileType::regular && facts.device == object.key.space && facts.inode == object.key.id &&
         facts.uid == object.uid && facts.size == object.size;
}

class Remover {
 public:
  Remover(const Inventory& inventory, const std::vector<std::size_t>& objects, const RemovalOptions& options)
      : inventory_(inventory), objects_(objects), options_(options), out_(objects.size()) {}

  std::vector<Removal> run() {
    std::vector<std::size_t> next(objects_.size());
    std::iota(next.begin(), next.end(), std::size_t{0});
    for (int tried = 0; tried < kTries && !next.empty(); ++tried) {
      if (tried != 0) options_.rest(kFirstWait << (tried - 1));
      busy_.clear();
      attempt(next);
      next = busy_;
    }
    return std::move(out_);
  }

 private:
  const Mount& mount_of(const Object& object) const { return inventory_.mounts[object.mount].mount; }

  // The files among them are removed together.
  void attempt(const std::vector<std::size_t>& which) {
    std::vector<Leaving> leaving;
    for (const std::size_t i : which) {
      const Object& object = inventory_.objects[objects_[i]];
      if (object.kind == Kind::sysv) {
        out_[i] = remove_segment(object);
      } else if (auto set_aside = try_set_aside(i, object)) {
        leaving.push_back(std::move(*set_aside));
      }
    }
    settle(leaving);
    for (Leaving& it : leaving) finish(it);
  }

  // The kernel knows a holder that no scan shows, or a tool that asks at this moment.
  void refuse_as_busy(std::size_t index, const Object& object, std::string reason) {
    const bool nobody_seen = std::ranges::all_of(object.holders, [&](const Holder& holder) {
      const Process& process = inventory_.processes[holder.process];
      auto proc = Proc::open("/proc");
      auto now = proc ? proc->process(process.pid) : sys_error(ESRCH);
      return now ? now->start != process.start : is_gone(now.error());
    });
    if (nobody_seen) busy_.push_back(index);
    refuse(index, Outcome::held, std::move(reason));
  }

  void refuse(std::size_t index, Outcome outcome, std::string reason) {
    out_[index].outcome = outcome;
    out_[index].reason = std::move(reason);
  }

  std::optional<Leaving> try_set_aside(std::size_t index, const Object& object) {
    if (object.names.empty() || object.reach.empty()) {
      refuse(index, Outcome::refused, "it has no name that can be reached; its last holder's end frees it");
      return std::nullopt;
    }
    if (object.links != object.names.size()) {
      refuse(index, Outcome::refused,
             "it has " + std::to_string(object.links) + " names and " + std::to_string(object.names.size()) +
                 " were found: removing those would free nothing");
      return std::nullopt;
    }
    Leaving it;
    it.index = index;
    auto file = open_beneath(mount_of(object), object.name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
    if (!file) {
      const int why = file.error().value;
      if (why == ENOENT || why == ELOOP || why == EXDEV)
        refuse(index, Outcome::changed, "its name is gone or leads elsewhere now");
      else if (why == EWOULDBLOCK)
        refuse_as_busy(index, object, "it cannot be opened: another process holds a lease of it");
      else refuse(index, Outcome::refused, "it cannot be opened: " + errno_text(why));
      return std::nullopt;
    }
    it.file = std::move(*file);
    auto facts = sys::file_stat(it.file.get());
    if (!facts || !is_same(object, *facts) || facts->links != object.links) {
      refuse(index, Outcome::changed, "it is not the object of the plan any more");
      return std::nullopt;
    }
    out_[index].freed = facts->touched;
    if (!take_lease(index, object, it)) return std::nullopt;
    if (!set_aside(index, object, it)) {
      let_go(it);
      return std::nullopt;
    }
    return it;
  }

  bool take_lease(std::size_t index, const Object& object, Leaving& it) {
    auto leased = sys::take_write_lease(it.file.get());
    if (leased) {
      it.leased = true;
      return true;
    }
    if (leased.error().value == EAGAIN) {
      refuse_as_busy(index, object, "a process has it open or mapped");
      return false;
    }
    if (options_.without_lease) {
      if (object.holders.empty()) return true;
      refuse(index, Outcome::held, "a process has it open or mapped");
      return false;
    }
    const bool off = leases_are_off();
    const bool not_ours = !off && leased.error().value == EACCES;
    const std::string why = off ? "fs.leases-enable is 0" : errno_text(leased.error().value);
    refuse(index, Outcome::refused,
           "the kernel gives no lease (" + why + "), so nobody knows whether it is in use: " +
               (not_ours ? "run as its owner or as root" : "--without-lease trusts /proc alone"));
    return false;
  }

  bool set_aside(std::size_t index, const Object& object, Leaving& it) {
    for (const std::string& name : object.names) {
      const std::string folder = folder_of(name);
      auto aside = folders_.find({object.mount, folder});
      if (aside == folders_.end()) {
        auto made = AsideFolder::make(mount_of(object), folder);
        if (!made) {
          refuse(index, Outcome::refused, made.error().sentence);
          return false;
        }
        aside = folders_.emplace(std::pair(object.mount, folder), std::move(*made)).first;
      }
      Name at{.file = last_of(name), .aside = aside->second.get()};
      // The name must still lead to this file, not to a younger one.
      auto facts = sys::file_stat_at(at.aside->parent(), at.file.c_str(), false);
      if (!facts || !is_same(object, *facts)) {
        refuse(index, Outcome::changed, "another file has taken its name");
        return false;
      }
      it.names.push_back(std::move(at));
    }
    for (Name& name : it.names) {
      auto renamed = sys::rename_at(name.aside->parent(), name.file.c_str(), name.aside->folder(), name.file.c_str());
      if (!renamed) {
        const int why = renamed.error().value;
        refuse(index, why == ENOENT ? Outcome::changed : Outcome::refused,
               "its name cannot be taken away: " + errno_text(why));
        return false;
      }
      name.is_aside = true;
      auto facts = sys::file_stat_at(name.aside->folder(), name.file.c_str(), false);
      if (!facts || !is_same(object, *facts)) {  // a younger file took the name between the check and the rename
        refuse(index, Outcome::changed, "another file has taken its name");
        return false;
      }
    }
    return lease_holds(index, it);
  }

  bool lease_holds(std::size_t index, const Leaving& it) {
    if (!it.leased) return true;
    auto holds = sys::write_lease_holds(it.file.get());
    if (holds && *holds) return true;
    refuse(index, Outcome::held, "a process opened it meanwhile: it has its name back");
    return false;
  }

  // Names first, then the lease: a process that waits in open(2) then continues with a file that has its name.
  void let_go(Leaving& it) {
    for (Name& name : it.names) {
      if (!name.is_aside) continue;
      auto back = sys::rename_at(name.aside->folder(), name.file.c_str(), name.aside->parent(), name.file.c_str());
      if (back) name.is_aside = false;
      else
        out_[it.index].reason += "; its name is taken by a younger file, so it stays in a folder " +
                                 std::string(kAside) + "... beside it (" + errno_text(back.error().value) + ")";
    }
    if (it.leased) (void)sys::give_lease_up(it.file.get());
    it.leased = false;
  }

  void settle(std::vector<Leaving>& leaving) {
    if (leaving.empty()) return;
    const std::int64_t end = sys::now_monotonic() + options_.settle;
    do {
      std::erase_if(leaving, [&](Leaving& it) {
        if (lease_holds(it.index, it)) return false;
        let_go(it);
        return true;
      });
      ::sched_yield();
      if (options_.settle != 0) sys::rest(1'000'000);
    } while (!leaving.empty() && sys::now_monotonic() < end);
    if (options_.without_lease) look_again(leaving);
  }

  // Without leases a scan of /proc is the only evidence. The names are moved aside already, so no new holder can come.
  void look_again(std::vector<Leaving>& leaving) {
    if (std::ranges::all_of(leaving, &Leaving::leased)) return;
    auto now = scan({});
    std::set<Key> held;
    if (now)
      for (const Object& object : now->objects)
        if (std::ranges::any_of(object.holders,
                                [&](const Holder& holder) { return now->processes[holder.process].pid != ::getpid(); }))
          held.insert(object.key);
    std::erase_if(leaving, [&](Leaving& it) {
      if (it.leased || (now && !held.contains(inventory_.objects[objects_[it.index]].key))) return false;
      refuse(it.index, Outcome::held, "a process has it open or mapped");
      let_go(it);
      return true;
    });
  }

  void finish(Leaving& it) {
    if (!lease_holds(it.index, it)) return let_go(it);
    for (Name& name : it.names) {
      auto removed = sys::remove_at(name.aside->folder(), name.file.c_str(), false);
      if (!removed) {
        refuse(it.index, Outcome::refused, "it cannot be removed: " + errno_text(removed.error().value));
        return let_go(it);
      }
      name.is_aside = false;
    }
    if (it.leased) (void)sys::give_lease_up(it.file.get());
    out_[it.index].outcome = Outcome::removed;
    out_[it.index].reason.clear();
  }

  Removal remove_segment(const Object& object) {
    Removal out;
    const int shmid = static_cast<int>(object.key.id);
    const auto work = [&] {
      auto facts = sys::sysv_facts(shmid);
      if (!facts) {
        out = {facts.error().value == EINVAL || facts.error().value == EIDRM ? Outcome::changed : Outcome::refused,
               "it cannot be looked at: " + errno_text(facts.error().value), 0};
      } else if (facts->size != object.size || facts->creator != object.creator || facts->uid != object.uid) {
        out = {Outcome::changed, "it is not the object of the plan any more", 0};
      } else if (facts->attached != 0) {
        out = {Outcome::held, "a process is attached to it", 0};
      } else if (auto removed = sys::remove_sysv(shmid); !removed) {
        out = {Outcome::refused, "the kernel refuses: " + errno_text(removed.error().value), 0};
      } else {
        out = {Outcome::removed, "", object.touched};
      }
    };
    const Process* self = inventory_.find(::getpid());
    if (self == nullptr || self->ipc_ns == object.ipc_namespace) {
      work();
      return out;
    }
    const auto inside = std::ranges::find(inventory_.processes, object.ipc_namespace, &Process::ipc_ns);
    if (inside == inventory_.processes.end())
      return {Outcome::refused, "no process of its IPC namespace is left to enter it by", 0};
    auto entered = in_ipc_namespace("/proc/" + std::to_string(inside->pid) + "/ns/ipc", work);
    if (!entered)
      return {Outcome::refused, "its IPC namespace cannot be entered: " + errno_text(entered.error().value), 0};
    return out;
  }

  const Inventory& inventory_;
  const std::vector<std::size_t>& objects_;
  const RemovalOptions& options_;
  std::vector<Removal> out_;
  std::vector<std::size_t> busy_;  // in the caller's list: to be tried again
  AsideFolders folders_;
};

void recover_folder(const Mount& mount, const std::string& inside, const std::string& name,
                    std::vector<Recovered>& out) {
  const std::string parent = mount.reach + (inside.empty() ? "" : "/" + inside);
  auto above = open_beneath(mount, inside, O_RDONLY | O_DIRECTORY);
  if (!above) return;
  auto folder = sys::open_at(above->get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!folder) return;
  if (!sys::lock_file(folder->get())) return;  // its maker lives
  auto files = names_in(folder->get());
  if (!files) return;
  for (const std::string& file : *files) {
    auto back = sys::rename_at(folder->get(), file.c_str(), above->get(), file.c_str());
    if (back) out.push_back({parent + "/" + file, ""});
    else out.push_back({parent + "/" + name + "/" + file, errno_text(back.error().value)});
  }
  (void)sys::remove_at(above->get(), name.c_str(), true);
}

}  // namespace

bool leases_are_off() {
  auto text = sys::read_file("/proc/sys/fs/leases-enable");
  return text && text->starts_with('0');
}

bool is_aside_folder(std::string_view name) { return name.starts_with(kAside); }

bool is_set_aside(std::string_view path) {
  for (std::size_t slash = 0; (slash = path.find('/')) != path.npos; path.remove_prefix(slash + 1))
    if (is_aside_folder(path.substr(0, slash))) return true;
  return false;
}

std::vector<Removal> remove(const Inventory& inventory, const std::vector<std::size_t>& objects,
                            const RemovalOptions& options) {
  return Remover(inventory, objects, options).run();
}

std::vector<Recovered> recover(const Inventory& inventory) {
  std::vector<Recovered> out;
  for (const auto& [mount, folder] : inventory.folders_aside)
    recover_folder(inventory.mounts[mount].mount, folder_of(folder), last_of(folder), out);
  return out;
}

}  // namespace shmb::host
