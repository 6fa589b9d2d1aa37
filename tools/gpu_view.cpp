// SPDX-License-Identifier: Apache-2.0
// See gpu_view.hpp.
#include "tools/gpu_view.hpp"

#include <unistd.h>

#include <array>

#include "base/sys_gpu.hpp"
#include "base/text.hpp"
#include "tools/table.hpp"

namespace shmb::tools {
namespace {

template <std::size_t N>
std::string word_of(const std::array<const char*, N>& words, std::uint32_t value) {
  return value < N ? words[value] : "unknown";
}

std::string kind_text(std::uint32_t kind) { return word_of(std::array{"none", "vmm", "legacy", "timeline"}, kind); }

bool a_set(const shmbw_gpu_record& record) { return (record.publish_flags & SHMBW_GPU_PUBLISH_SET) != 0; }

std::string kind_text(const shmbw_gpu_record& record) { return a_set(record) ? "set" : kind_text(record.kind); }

std::string hold_text(std::uint32_t hold) {
  return word_of(std::array{"nobody", "being opened", "the broker", "the broker, by its publisher's descriptor",
                            "trusted to another process", "nobody"},
                 hold);
}

std::string pid_text(std::uint32_t pid) { return pid == 0 ? "unknown" : std::to_string(pid); }

std::string number_of(std::uint32_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string uuid_text(const shmbw_gpu_record& record) {
  return sys::gpu_uuid_text(record.uuid, (record.publish_flags & SHMBW_GPU_PUBLISH_MIG) != 0);
}

std::string device_text(const shmbw_gpu_record& record) {
  return record.kind == SHMBW_GPU_KIND_TIMELINE ? "host" : uuid_text(record);
}

}  // namespace

std::string gpu_state_text(const shmbw_gpu_record& record) {
  return word_of(std::array{"unknown", "ok", "incomplete", "poisoned", "detached", "device lost", "invalid", "retired",
                            "producer dead"},
                 record.state);
}

std::string why_held(const shmbw_gpu_record& record) {
  std::string out;
  auto add = [&](bool holds, const std::string& what) {
    if (holds) out += (out.empty() ? "" : ", ") + what;
  };
  add((record.flags & SHMBW_REGION_NAMED) != 0, record.freed_at != 0 ? "keep" : "name");
  add(record.exporter != 0, "publisher");
  add(record.importers > record.leaving, number_of(record.importers - record.leaving, "importer"));
  add(record.leaving != 0, std::to_string(record.leaving) + (record.leaving == 1 ? " process" : " processes") +
                               " that left the broker and may still map it");
  add(record.tickets != 0, number_of(record.tickets, "ticket"));
  add(record.queues != 0, number_of(record.queues, "queue"));
  return out.empty() ? "nothing" : out;
}

Table gpu_table(const Common& common, const std::vector<GpuRow>& rows) {
  Table table({{"GROUP", Align::left, true},
               {"GPU REGION", Align::left, true},
               {"SIZE", Align::right},
               {"DEVICE", Align::left, true},
               {"KIND", Align::left, false, 2},
               {"PUBLISHER", Align::right, false, 4},
               {"IMPORTERS", Align::right, false, 3},
               {"AGE", Align::right, false, 1},
               {"STATE"},
               {"HELD BY", Align::left, true}});
  for (const GpuRow& row : rows) {
    const shmbw_gpu_record& record = row.record;
    const std::string owner = record.owner_uid == ::geteuid() ? "" : std::to_string(record.owner_uid) + ":";
    table.add({owner + group_text(record.group, row.group), row.name.empty() ? id_text(record.region) : row.name,
               size_cell(common, record.bytes), device_text(record), kind_text(record), pid_text(record.exporter_pid),
               record.importers, age_cell(record.created), gpu_state_text(record), why_held(record)},
              id_text(record.region));
  }
  return table;
}

std::vector<std::pair<std::string, std::string>> gpu_lines(const Common& common, const shmbw_gpu_record& record) {
  const std::string minor = record.minor == UINT32_MAX ? "" : " (/dev/nvidia" + std::to_string(record.minor) + ")";
  std::vector<std::pair<std::string, std::string>> lines{
      {"kind", kind_text(record) + (record.kind == SHMBW_GPU_KIND_VMM
                                        ? ", " + number_of(record.chunks, "chunk") +
                                              (a_set(record)        ? " of several regions"
                                               : record.chunk_bytes ? " of " + size_text(common, record.chunk_bytes)
                                                                    : "")
                                        : "")}};
  if (record.kind != SHMBW_GPU_KIND_TIMELINE) {
    lines.insert(lines.begin(), {"device", uuid_text(record) + minor});
    lines.emplace_back("initialised", "kept so by " + hold_text(record.hold));
  }
  lines.emplace_back("publisher",
                     "pid " + pid_text(record.exporter_pid) + (record.exporter != 0 ? "" : ", gone or released"));
  lines.emplace_back(
      "memory", gpu_state_text(record) + (record.code != 0 ? ", the driver said " + std::to_string(record.code) : ""));
  lines.emplace_back("held by", why_held(record));
  return lines;
}

Json gpu_json(const GpuRow& row) {
  const shmbw_gpu_record& record = row.record;
  const bool on_gpu = record.kind != SHMBW_GPU_KIND_TIMELINE;
  return Json{{"id", id_text(record.region)},
              {"group", group_text(record.group, row.group)},
              {"group_id", record.group},
              {"name", row.name.empty() ? Json(nullptr) : Json(row.name)},
              {"owner_uid", record.owner_uid},
              {"kind", kind_text(record)},
              {"device", on_gpu ? Json(uuid_text(record)) : Json(nullptr)},
              {"minor", record.minor == UINT32_MAX ? Json(nullptr) : Json(record.minor)},
              {"hold", hold_text(record.hold)},
              {"bytes", record.bytes},
              {"chunks", record.chunks},
              {"chunk_bytes", a_set(record) ? 0 : record.chunk_bytes},
              {"state", gpu_state_text(record)},
              {"code", record.code},
              {"driver", record.driver},
              {"exporter_pid", record.exporter_pid == 0 ? Json(nullptr) : Json(record.exporter_pid)},
              {"exporter", record.exporter != 0},
              {"importers", record.importers},
              {"leaving", record.leaving},
              {"tickets", record.tickets},
              {"queues", record.queues},
              {"held_by", why_held(record)}};
}

}  // namespace shmb::tools
