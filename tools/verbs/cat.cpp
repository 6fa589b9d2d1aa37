// SPDX-License-Identifier: Apache-2.0
// `shmbroker cat ADDRESS`: the region's bytes on stdout, exactly as many as were asked for at its creation. It is an
// ordinary reader: in private mode the first reader of a region that is still written closes it for new writers. For a
// region that is not published, such as one that a killed `put` left, it prints a note to stderr.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <memory>
#include <span>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "tools/exit_code.hpp"
#include "tools/resolve.hpp"
#include "tools/session.hpp"
#include "tools/tool.hpp"

namespace shmb::tools {
namespace {

struct CatOptions {
  Common common;
  std::string address;
  std::int64_t wait = 0;
};

int run_cat(const CatOptions& options) {
  auto target = resolve(options.address);
  if (!target) return fail(target.error());
  auto session = Session::connect(options.common, Start::never);
  if (!session) return fail(session.error());
  shmb_attach_options attach_options{};
  attach_options.size = sizeof attach_options;
  attach_options.rights = SHMB_RIGHT_READ;
  attach_options.wait_ns = options.wait;
  attach_options.timeout_ns = session->timeout();
  auto region = attach(*session, *target, attach_options);
  if (!region) return fail(region.error());
  shmb_region_info info{};
  info.size = sizeof info;
  shmb_error failure{};
  if (shmb_region_get_info(region->get(), &info, &failure) != SHMB_OK) return fail(failed(failure));
  if (info.state != SHMB_REGION_PUBLISHED)  // being written, or its writer was killed meanwhile
    complain("warning: " + options.address + " is not published: its bytes may be incomplete, and may change");
  const auto* data = static_cast<const std::byte*>(shmb_region_data(region->get()));
  auto written = sys::write_all(STDOUT_FILENO, {data, shmb_region_length(region->get())});
  if (!written) {
    complain("cannot write to stdout: " + errno_text(written.error().value));
    return kExitError;
  }
  return kExitOk;
}

}  // namespace

Command add_cat(CLI::App& app) {
  auto options = std::make_shared<CatOptions>();
  CLI::App* verb = app.add_subcommand("cat", "Write a region's bytes to standard output");
  verb->add_option("address", options->address, "NAME, GROUP/NAME, UID:GROUP/NAME or @ID")->required();
  add_duration(*verb, "--wait", options->wait, "Wait this long for a name that is not there yet");
  add_common(*verb, options->common, false, false);
  return {verb, [options] { return run_cat(*options); }};
}

}  // namespace shmb::tools
