// SPDX-License-Identifier: Apache-2.0
// See gpu_client.hpp.
#include "tests/daemon/books/gpu_client.hpp"

namespace shmb::daemon::test {

Packet& ask_device(Client& client, const sys::GpuUuid& uuid, std::string_view pci) {
  shmbw_gpu_device wish{};
  std::ranges::copy(uuid, wish.uuid);
  wish.pci_len = static_cast<std::uint16_t>(pci.size());
  if (!client.link().brought.empty()) wish.flags = SHMBW_GPU_DEVICE_NODE_GIVEN;
  return client.call(SHMBW_OP_GPU_DEVICE, wish, pci);
}

shmbw_gpu_device_event await_device(World& world, Client& client, std::string* text) {
  const auto is_it = [](const Packet& event) { return event.op() == (SHMBW_EVENT | SHMBW_EVENT_GPU_DEVICE); };
  auto& events = client.link().events;
  while (std::ranges::none_of(events, is_it)) {
    auto woken = sys::poll_readable(world.books->wake_fd(), 60 * kSecond);
    REQUIRE(woken);
    REQUIRE(*woken);
    world.books->woken();
  }
  auto at = std::ranges::find_if(events, is_it);
  const auto event = at->fixed<shmbw_gpu_device_event>();
  if (text) *text = std::string(reinterpret_cast<const char*>(at->view().rest.data()), at->view().rest.size());
  events.erase(at);
  return event;
}

Client gpu_client(World& world, std::uint32_t uid, std::uint32_t pid) {
  Client client = world.silent(uid, pid);
  client.hello({.features = SHMBW_FEATURE_PASS_RIGHTS});
  const auto reply = ask_device(client).fixed<shmbw_gpu_device_reply>();
  REQUIRE(reply.hold == SHMBW_GPU_HOLD_OPENING);
  REQUIRE(await_device(world, client).hold == SHMBW_GPU_HOLD_NODE);
  return client;
}

GpuPublished publish(Client& client, const GpuRequest& wish, Export* made) {
  if (wish.kind == SHMBW_GPU_KIND_VMM) {
    for (std::uint32_t i = 0; i < wish.chunks; ++i) {
      Export fresh;
      client.link().bring(copy_of(fresh.keeper));
      client.link().bring(copy_of(fresh.share));
      if (made) *made = std::move(fresh);
    }
  }
  return answer_of<shmbw_gpu_publish_reply>(
      client.batch<shmbw_gpu_publish>(SHMBW_OP_GPU_PUBLISH, {publish_of(wish)}, wish.name));
}

GpuOpened open_id(Client& client, shmbw_region_ref ref, std::uint32_t rights, Packet** packet) {
  shmbw_gpu_open wish{};
  wish.by = SHMBW_ATTACH_BY_ID;
  wish.rights = rights;
  wish.region = ref;
  wish.flags = SHMBW_GPU_OPEN_MANIFEST;
  Packet& reply = client.batch<shmbw_gpu_open>(SHMBW_OP_GPU_OPEN, {wish});
  if (packet) *packet = &reply;
  return answer_of<shmbw_gpu_open_reply>(reply);
}

GpuOpened open_name(Client& client, std::string_view name, std::uint32_t rights) {
  shmbw_gpu_open wish{};
  wish.by = SHMBW_ATTACH_BY_NAME;
  wish.rights = rights;
  wish.name_len = static_cast<std::uint16_t>(name.size());
  return answer_of<shmbw_gpu_open_reply>(client.batch<shmbw_gpu_open>(SHMBW_OP_GPU_OPEN, {wish}, name));
}

GpuAnswer<shmbw_gpu_report_reply> report(Client& client, shmbw_region_ref ref, shmbw_gpu_finding what, int code) {
  shmbw_gpu_report wish{};
  wish.region = ref;
  wish.what = what;
  wish.code = code;
  if (what == SHMBW_GPU_FINDING_DEVICE_LOST) std::ranges::copy(gpu_uuid(), wish.uuid);
  return answer_of<shmbw_gpu_report_reply>(client.batch<shmbw_gpu_report>(SHMBW_OP_GPU_REPORT, {wish}));
}

std::vector<shmbw_gpu_record> gpu_rows(Client& client) {
  return client.rows<shmbw_gpu_record>(SHMBW_TABLE_GPU_REGIONS);
}

std::vector<std::uint32_t> states_told(Client& client) {
  std::vector<std::uint32_t> out;
  for (const Packet& event : client.link().events)
    if (event.op() == (SHMBW_EVENT | SHMBW_EVENT_GPU_STATE)) out.push_back(event.fixed<shmbw_gpu_state_event>().state);
  client.link().events.clear();
  return out;
}

}  // namespace shmb::daemon::test
