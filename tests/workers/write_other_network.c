/*
 * Writes a whole, valid snapshot of a network that `train` does not have: write-other-network FOLDER.
 */

#include <stdio.h>

#include "worker-runtime/crw.h"

int main(int argc, char **argv)
{
    static const struct crw_layer layers[] = {{.kind = CRW_LAYER_LINEAR, .name = "fc", .in = 4, .out = 2}};
    const struct crw_shape input = {4, 1, 1};
    struct crw_snapshots *snapshots;
    struct crw_tensor tensors[2];
    struct crw_model *model;
    char hash[16];
    const struct crw_pair meta[] = {{"model_hash", hash}, {"step", "7"}};

    if (argc != 2)
        return 2;
    if (crw_model_create(layers, 1, input, 1, NULL, &model) != 0 ||
        crw_snapshots_create(argv[1], 2, &snapshots) != 0) {
        fprintf(stderr, "write-other-network: %s\n", crw_error_message());
        return 1;
    }
    crw_model_init(model, 0);
    for (size_t i = 0; i < 2; i++)
        tensors[i] = crw_model_tensor(model, i);
    snprintf(hash, sizeof(hash), "%08x", crw_model_hash(model));
    if (crw_snapshots_save(snapshots, 7, tensors, 2, meta, 2) != 0) {
        fprintf(stderr, "write-other-network: %s\n", crw_error_message());
        return 1;
    }
    crw_snapshots_destroy(snapshots);
    crw_model_destroy(model);
    return 0;
}
