/** A delivery to a Bot: the run is made here and now, PostgreSQL holds the job. */

import type { Hook } from '../../shared/access/subscription.ts'
import type { BotTarget, NoTarget } from '../../shared/bots/event-target.ts'
import { actingAs } from '../../shared/bots/execute-bot.ts'
import type { ExecuteJob } from '../../shared/platform/queue/jobs.ts'
import { HandedBack, type Runner } from '../bots/run.ts'
import { Deferred } from '../bots/slots.ts'
import type { Sent } from './delivery-outcome.ts'
import { CONTENT_TYPE, eventHeaders, givenHeaders, type Message } from './headers.ts'

const BACK_MS = 1000
/** A run that waits for no caller may wait for its turn. */
const QUEUE_MS = 60_000

/** The outcome of an attempt when no Bot can be run. */
export function withoutTarget({ isOff, text }: NoTarget): Sent {
  return isOff ? { kind: 'stopped', reason: 'bots off', text } : failed(`error ${text}`)
}

/** `input` is JSON text. */
export async function runBot(
  runner: Runner,
  projectId: string,
  { bot, version, projectId: botProjectId, session }: BotTarget,
  hook: Hook,
  message: Message,
  requester: string | undefined,
  input: string,
): Promise<Sent> {
  const { delivery } = message
  const { id, cause, added, attempt } = delivery
  const headers = Object.entries({ ...eventHeaders(message), ...givenHeaders(hook) })
  const job: ExecuteJob = {
    runId: id,
    projectId,
    botId: bot.id,
    botProjectId,
    botVersion: version,
    ...actingAs(session.principal),
    requester,
    contentType: CONTENT_TYPE,
    inputKind: 'json',
    input,
    headers: Object.fromEntries(headers.map(([name, value]) => [name.toLowerCase(), value])),
    traceId: cause.traceId ?? id,
    requestId: cause.requestId ?? id,
    depth: cause.depth ?? 0,
    added: added.getTime(),
    deadline: Date.now() + QUEUE_MS,
    subscription: `Subscription/${message.subscription}`,
    delivery: true,
  }
  try {
    const { reply, failure } = await runner.deliver(job, attempt)
    if (reply.status === 'ok') return { kind: 'received', text: 'status 200' }
    if (reply.status === 'unavailable')
      return { kind: 'fault', text: 'error The run could not start' }
    return failed(`error Bot run failed: ${failure ?? 'thrown'}`)
  } catch (error) {
    if (error instanceof Deferred) return { kind: 'back', delayMs: error.delayMs }
    if (error instanceof HandedBack) return { kind: 'back', delayMs: BACK_MS }
    throw error
  }
}

function failed(text: string): Sent {
  return { kind: 'failed', text, after: undefined }
}
