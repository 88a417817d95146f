#!/usr/bin/env bash
# Runs a command under Khronos' validation layer for Vulkan, with its validation of synchronisation.
#
#   scripts/validation-layer.sh target/release/anygpu check --devices soft:0 --quick
#
# Needs Debian's package vulkan-validationlayers. Status 1: the command failed, the layer was not loaded, or it had a message.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Without the validation at submits, the layer of Debian 12 sees nothing: wgpu's barriers are mostly in command buffers of their own.
# The last line has the name that newer layers use.
cat >"$folder/vk_layer_settings.txt" <<SETTINGS
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.log_filename = $folder/messages
khronos_validation.report_flags = error,warn
khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT,VALIDATION_CHECK_ENABLE_SYNCHRONIZATION_VALIDATION_QUEUE_SUBMIT
khronos_validation.validate_sync = true
SETTINGS
# wgpu sets no callback of its own: this crate opens it without debugging flags.
VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation VK_LAYER_SETTINGS_PATH=$folder "$@"
# The layer makes the file when it is loaded.
if [ ! -e "$folder/messages" ]; then
    echo "validation-layer: the layer was not loaded: install vulkan-validationlayers" >&2
    exit 1
fi
if [ -s "$folder/messages" ]; then
    head -c 8000 "$folder/messages" >&2
    echo "validation-layer: $(grep -c '^[^ ].*Validation' "$folder/messages") messages" >&2
    exit 1
fi
