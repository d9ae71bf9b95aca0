trl grpo --num_processes 1 \
    --model_name_or_path Qwen/Qwen3-4B \
    --per_device_train_batch_size 4 \
    --max_prompt_length 2048 \
    --max_completion_length 1024
