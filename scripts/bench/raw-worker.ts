/** The other end of the raw BullMQ round trip: an empty processor that publishes its answer. */
import { Worker } from 'bullmq'
import { Redis } from 'ioredis'

const url = process.env.REDIS_URL ?? ''
const replies = new Redis(url)
const worker = new Worker(
  'bench-raw',
  async (job) => {
    await replies.publish(job.data.reply, JSON.stringify({ id: job.id, result: job.data.input }))
  },
  {
    connection: new Redis(url, { maxRetriesPerRequest: null }),
    concurrency: 8,
    removeOnComplete: { count: 0 },
    removeOnFail: { count: 0 },
  },
)
await worker.waitUntilReady()
process.send?.('ready')
