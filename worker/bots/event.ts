/** Job → the JSON text that becomes the handler's `event`, and what `medplum` knows preset. */
import { isObject, type Resource } from '../../shared/fhir/resource.ts'
import type { Session } from '../../shared/identity/principals.ts'
import type { ExecuteJob } from '../../shared/platform/queue/jobs.ts'
import { sessionDetails } from '../../shared/projects/signed-in-user.ts'

/** Elements of a Project that its members do not see. */
const HIDDEN_OF_PROJECT = new Set(['secret', 'systemSecret', 'systemSetting', 'site'])

/** Shorter values are ordinary words in a log. */
const SHORTEST_SECRET = 8

// A session is shared by all runs of a membership until it is read again, and its text with it.
const contexts = new WeakMap<Session, string>()

export interface EventTimes {
  readonly attempt: number
  /** Epoch ms. */
  readonly deadline: number
}

export interface EventOf {
  readonly job: ExecuteJob
  readonly bot: Resource
  readonly session: Session
  /** JSON text already. */
  readonly secrets: string
  readonly times: EventTimes
  readonly baseUrl: string
  /** For bots that ask for it at once. */
  readonly accessToken: string | undefined
}

export function eventText(run: EventOf): string {
  const { job, bot, session, secrets, times, baseUrl, accessToken } = run
  const head = JSON.stringify({
    bot: {
      reference: `Bot/${job.botId}`,
      ...(typeof bot.name === 'string' ? { display: bot.name } : {}),
    },
    contentType: job.contentType,
    requester: job.requester === undefined ? undefined : { reference: job.requester },
    traceId: job.traceId,
    headers: job.headers,
    path: job.path,
    scheduledTime: job.scheduled?.time,
    rawBody: job.hasRawBody,
    runId: job.runId,
    ...times,
    accessToken,
  })
  return `${head.slice(0, -1)},"secrets":${secrets},"context":${contextText(session, baseUrl)}}`
}

function contextText(session: Session, baseUrl: string): string {
  let text = contexts.get(session)
  if (text === undefined) {
    const { project, profile, ...rest } = sessionDetails(session)
    text = JSON.stringify({
      baseUrl,
      // A text, so that runs which never ask do not parse it.
      details: JSON.stringify({
        ...rest,
        project: { ...visible(session.project), ...project },
        membership: session.membership,
        profile,
      }),
    })
    contexts.set(session, text)
  }
  return text
}

function visible(project: Resource): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(project).filter(([name]) => !HIDDEN_OF_PROJECT.has(name)),
  )
}

/** The texts by which secrets may show in a log, the longest first, as the sandbox has them (guest/journal.cjs). */
export function secretTexts(secrets: Iterable<Readonly<Record<string, unknown>>>): string[] {
  const texts = new Set<string>()
  for (const { valueString, valueInteger, valueDecimal } of secrets) {
    const text = String(valueString ?? valueInteger ?? valueDecimal ?? '')
    if (text.length < SHORTEST_SECRET) continue
    texts.add(text)
    // As it stands in JSON.
    texts.add(JSON.stringify(text).slice(1, -1))
  }
  // One may be part of another.
  return [...texts].sort((a, b) => b.length - a.length)
}

/** Replaces `secretTexts` by `***`. */
export function redact(log: string, secrets: readonly string[]): string {
  return secrets.reduce((text, secret) => text.replaceAll(secret, '***'), log)
}

/** An OperationOutcome as text, with the run's id in its first issue. */
export function withRunId(body: string, runId: string): string {
  const outcome: unknown = JSON.parse(body)
  if (!isObject(outcome) || !Array.isArray(outcome.issue)) return body
  const [first, ...rest] = outcome.issue
  if (!isObject(first) || first.diagnostics !== undefined) return body
  return JSON.stringify({ ...outcome, issue: [{ ...first, diagnostics: runId }, ...rest] })
}
