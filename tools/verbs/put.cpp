// SPDX-License-Identifier: Apache-2.0
// `shmbroker put FILE --name N`: a file as a published region. The file is read straight into the populated memory: no
// second copy, and no signal where there is no room. Then it is published, so readers get it read-only and
// unchangeable.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>
#include <optional>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "proto/names.hpp"
#include "tools/exit_code.hpp"
#include "tools/printable.hpp"
#include "tools/progress.hpp"
#include "tools/report_json.hpp"
#include "tools/session.hpp"
#include "tools/tool.hpp"

namespace shmb::tools {
namespace {

constexpr std::int64_t kShellKeep = 3'600'000'000'000;  // for groups that put makes: 1 h
constexpr std::uint64_t kChunk = 8ULL << 20;
constexpr std::uint64_t kPopulateChunk = 256ULL << 20;  // for regions too large to be populated at birth

struct PutOptions {
  Common common;
  std::string file, name, group;
  std::optional<std::int64_t> keep;
  std::optional<std::uint32_t> numa;
  bool replace = false, hugetlb = false;
};

// A user who presses Ctrl-C gets the message that nothing was put. The region has no name before it is whole, and ends
// with this process in any case.
volatile std::sig_atomic_t interrupted = 0;

class Interruptible {
 public:
  Interruptible() {
    struct sigaction keep{};
    keep.sa_handler = [](int signal) { interrupted = signal; };
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction former{};
      // A signal that the shell has set to ignore stays ignored (nohup, a job in the background).
      if (::sigaction(signal, nullptr, &former) == 0 && former.sa_handler == SIG_DFL)
        ::sigaction(signal, &keep, nullptr);
    }
  }
  ~Interruptible() {
    if (interrupted == 0) return;
    std::signal(interrupted, SIG_DFL);
    (void)std::raise(interrupted);
  }
};

struct Source {
  Fd fd;
  std::uint64_t size = 0;
};

Result<Source> open_source(const std::string& path) {
  auto fd = sys::open(path.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK);
  if (!fd) return system_failure(fd.error(), "open " + shmb::quoted(path));
  auto facts = sys::file_facts(fd->get());
  if (!facts) return system_failure(facts.error(), "stat " + shmb::quoted(path));
  if (!facts->is_regular) return error(Status::system, shmb::quoted(path) + " is no regular file");
  char byte = 0;  // the files of /proc have contents but no size
  if (facts->size == 0 && ::read(fd->get(), &byte, 1) == 1)
    return error(Status::system, shmb::quoted(path) + " does not tell its size: put a copy of it");
  return Source{std::move(*fd), facts->size};
}

// Membership, so that the group's keep begins when this command ends.
Result<std::uint64_t> enter_group(const Session& session, const std::string& wanted) {
  // it is the session's group, where `cat NAME` searches
  if (wanted.empty() && in_a_group()) return session.info().group;
  shmb_error failure{};
  std::uint64_t id = 0;
  if (wanted.empty()) {
    if (shmb_group_join_user(session.get(), session.timeout(), &id, &failure) != SHMB_OK)
      return std::unexpected(failed(failure));
    return id;
  }
  const std::string& name = wanted;
  if (names::is_group_id(name) || name.contains(':')) {
    if (shmb_group_join(session.get(), name.c_str(), 0, session.timeout(), &id, &failure) != SHMB_OK)
      return std::unexpected(failed(failure));
    return id;
  }
  shmb_group_options options{};
  options.size = sizeof options;
  options.name = name.c_str();
  options.keep_ns = kShellKeep;
  options.flags = SHMB_GROUP_ADOPT_EXISTING;
  options.timeout_ns = session.timeout();
  shmb_group group{};
  if (shmb_group_create(session.get(), &options, &group, &failure) != SHMB_OK) return std::unexpected(failed(failure));
  if (shmb_group_join_token(session.get(), group.token, 0, session.timeout(), &id, &failure) != SHMB_OK)
    return std::unexpected(failed(failure));
  return id;
}

Result<Region> create(const Session& session, const PutOptions& options, std::uint64_t size) {
  shmb_create_options create{};
  create.size = sizeof create;
  create.name = options.name.c_str();
  create.timeout_ns = session.timeout();
  if (options.keep) {
    create.keep_ns = *options.keep;
    create.flags |= SHMB_CREATE_KEEP_GIVEN;
  }
  create.flags |= SHMB_CREATE_NAME_AT_PUBLISH;
  if (options.replace) create.flags |= SHMB_CREATE_REPLACE;
  if (options.hugetlb) create.flags |= SHMB_CREATE_HUGETLB;
  if (options.numa) {
    create.flags |= SHMB_CREATE_ON_NODE;
    create.numa_node = *options.numa;
  }
  shmb_error failure{};
  shmb_region* region = nullptr;
  if (shmb_create(session.get(), size, &create, &region, &failure) != SHMB_OK) return std::unexpected(failed(failure));
  return Region(region);
}

Result<void> fill(shmb_region* region, const Source& source, Progress& progress) {
  shmb_region_info info{};
  info.size = sizeof info;
  shmb_error failure{};
  if (shmb_region_get_info(region, &info, &failure) != SHMB_OK) return std::unexpected(failed(failure));
  auto* data = static_cast<std::byte*>(shmb_region_data(region));
  std::uint64_t populated = info.populated;
  for (std::uint64_t done = 0; done < source.size;) {
    if (interrupted != 0) return error(Status::system, "interrupted; nothing was put");
    if (done >= populated) {  // too large to be populated at birth
      const std::uint64_t part = std::min(kPopulateChunk, source.size - done);
      if (shmb_region_populate(region, done, part, &failure) != SHMB_OK) return std::unexpected(failed(failure));
      populated = done + part;
    }
    const ssize_t got = ::read(source.fd.get(), data + done, std::min({kChunk, source.size - done, populated - done}));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_failure(Errno{errno}, "read the file");
    if (got == 0) return error(Status::system, "the file became shorter while it was read; nothing was published");
    done += static_cast<std::uint64_t>(got);
    progress.at(done);
  }
  return {};
}

struct Done {
  shmb_region_stat stat{};
};

Result<Done> put(const Session& session, const PutOptions& options) {
  SHMB_TRY(source, open_source(options.file));
  SHMB_TRY_VOID(enter_group(session, options.group));
  SHMB_TRY(region, create(session, options, source.size));
  shmb_error failure{};
  {
    Progress progress("put " + options.name, source.size, !options.common.json);
    if (auto filled = fill(region.get(), source, progress); !filled) {
      return std::unexpected(filled.error());
    }
  }
  if (shmb_publish(region.get(), session.timeout(), &failure) != SHMB_OK) {
    return std::unexpected(failed(failure));
  }
  Done done;
  done.stat.size = sizeof done.stat;
  const shmb_region_id id = shmb_region_get_id(region.get());
  if (shmb_stat_id(session.get(), &id, session.timeout(), &done.stat, &failure) != SHMB_OK)
    return std::unexpected(failed(failure));
  return done;
}

std::string put_address(const shmb_region_stat& stat) {
  return address_text(stat.owner_uid, stat.group, stat.group_name, stat.name);
}

std::string stored_text(const PutOptions& options, const Session& session, const shmb_region_stat& stat) {
  const std::string address = put_address(stat);
  std::string text;
  if (session.info().started_by_us) text += std::string("started a private broker at ") + session.info().socket + "\n";
  text += address + ": " + size_text(options.common, stat.length) + ", read-only, ";
  text += stat.keep_ns == 0  ? "kept until its group ends\n"
          : stat.keep_ns < 0 ? "kept until released\n"
                             : "kept for " + format_duration(stat.keep_ns) + " after the end of its group\n";
  text += "read it: shmbroker cat " + address + "    free it: shmbroker release " + address;
  std::string out;
  for (std::size_t at = 0; at <= text.size();) {  // makes it printable line by line
    const std::size_t end = std::min(text.find('\n', at), text.size());
    out += printable(std::string_view(text).substr(at, end - at)) + "\n";
    at = end + 1;
  }
  return out;
}

std::string put_json(const Session& session, const shmb_region_stat& stat) {
  Json json = document("put");
  json["id"] = id_text({stat.id.id, stat.id.generation, 0});
  json["address"] = put_address(stat);
  json["group"] = group_text(stat.group, stat.group_name);
  json["group_id"] = stat.group;
  json["name"] = std::string(stat.name);
  json["length"] = stat.length;
  json["bytes"] = stat.bytes;
  json["keep_seconds"] = stat.keep_ns < 0 ? Json("until_released") : Json(static_cast<double>(stat.keep_ns) / 1e9);
  json["socket"] = std::string(session.info().socket);
  json["started_broker"] = session.info().started_by_us != 0;
  return dump(json);
}

int run_put(const PutOptions& options) {
  if (auto name = names::check(options.name, "region name"); !name) return fail(name.error());
  if (!options.group.empty())
    if (auto group = names::parse_group(options.group); !group) return fail(group.error());
  auto session = Session::connect(options.common, Start::private_broker);
  if (!session) return fail(session.error());
  const Interruptible interruptible;
  auto done = put(*session, options);
  if (!done) return fail(done.error());
  return print(options.common.json ? put_json(*session, done->stat) : stored_text(options, *session, done->stat))
             ? kExitOk
             : kExitError;
}

}  // namespace

Command add_put(CLI::App& app) {
  auto options = std::make_shared<PutOptions>();
  CLI::App* verb =
      app.add_subcommand("put", "Make a read-only region of a file; starts a private broker if there is none");
  verb->add_option("file", options->file, "The file")->required();
  verb->add_option("--name", options->name, "The region's name")->required();
  verb->add_option(
      "--group", options->group,
      "Its group, made with keep 1h if there is none (default: that of SHMBROKER_GROUP, else shell-<uid>)");
  verb->add_option_function<std::string>(
          "--keep",
          [options](const std::string& text) {
            auto keep = parse_duration(text);
            if (!keep) throw CLI::ValidationError("--keep", keep.error().sentence);
            options->keep = *keep;
          },
          "How long it stays after the group's end: 0, 10m, 7d, until-released")
      ->type_name("DURATION");
  verb->add_flag("--replace", options->replace, "Take the name over from a region that has it");
  verb->add_flag("--hugetlb", options->hugetlb, "In 2 MiB pages that the host has reserved (vm.nr_hugepages)");
  verb->add_option("--numa", options->numa, "All its memory comes from this NUMA node")->type_name("NODE");
  add_common(*verb, options->common, true, true);
  return {verb, [options] { return run_put(*options); }};
}

}  // namespace shmb::tools
