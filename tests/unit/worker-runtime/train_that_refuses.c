/* In front of the library's forward: the third batch of a training is refused, as a normalisation of one value would be. */

#include "worker-runtime/base/error.h"

int __real_crw_model_forward(struct crw_model *model, const float *input, int n, bool training,
                             const float **ret_output);
int __wrap_crw_model_forward(struct crw_model *model, const float *input, int n, bool training,
                             const float **ret_output);

int __wrap_crw_model_forward(struct crw_model *model, const float *input, int n, bool training,
                             const float **ret_output)
{
    static int n_trained;

    if (training && ++n_trained == 3)
        return crw_fail(CRW_E_ARGUMENT, "this batch is refused, and no learning rate helps");
    return __real_crw_model_forward(model, input, n, training, ret_output);
}
