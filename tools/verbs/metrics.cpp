// SPDX-License-Identifier: Apache-2.0
// `shmbroker metrics`: figures of the broker, its users and groups, and of the host, as OpenMetrics text. Once, or with
// --listen for each reader that asks. While it serves, a broker that does not answer is shown as shmbroker_up 0.
#include "tools/metrics/metrics.hpp"

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "base/result.hpp"
#include "tools/exit_code.hpp"
#include "tools/metrics/exposition.hpp"
#include "tools/metrics/http_server.hpp"
#include "tools/session.hpp"
#include "tools/tool.hpp"

namespace shmb::tools {
namespace {

struct MetricsOptions {
  Common common;
  std::optional<std::string> address;  // to serve them at
  bool all_groups = false;
};

Result<MetricsSource> read_all(const MetricsOptions& options) {
  MetricsSource source;
  read_metrics_host(source);
  SHMB_TRY(viewer, Viewer::connect_for(options.common, options.all_groups));
  SHMB_TRY(books, read_metrics_books(viewer, options.all_groups));
  source.books = std::move(books);
  return source;
}

int run_metrics(const MetricsOptions& options) {
  if (!options.address) {
    auto source = read_all(options);
    if (!source) return fail(source.error());
    return print(metrics_text(*source)) ? kExitOk : kExitError;
  }
  auto server = HttpServer::listen(*options.address);
  if (!server) return fail(server.error());
  if (!print("serving metrics on " + server->where() + "\n")) return kExitError;
  std::string told;  // a broker that is away is named once
  const auto page = [&] {
    auto source = read_all(options);
    if (source) {
      told.clear();
      return metrics_text(*source);
    }
    if (source.error().sentence != told) complain(told = source.error().sentence);
    MetricsSource host;
    read_metrics_host(host);
    return metrics_text(host);
  };
  if (auto served = server->serve(page, Exposition::kContentType); !served) return fail(served.error());
  return kExitOk;
}

}  // namespace

Command add_metrics(CLI::App& app) {
  auto options = std::make_shared<MetricsOptions>();
  CLI::App* verb =
      app.add_subcommand("metrics", "Print figures of the broker, its groups and the host, as OpenMetrics text");
  verb->add_option("--listen", options->address,
                   "Serve them over HTTP at /metrics: 127.0.0.1:PORT, [::1]:PORT or the path of a UNIX socket")
      ->type_name("ADDRESS");
  verb->add_flag("--all-groups", options->all_groups, "Those of all users; for root and the broker's own user");
  add_common(*verb, options->common, false, false);
  return {verb, [options] { return run_metrics(*options); }};
}

}  // namespace shmb::tools
