/** Runs a bot file in the workers' sandbox, with requests answered by a running service over HTTP. */
import { hash, randomUUID } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import type { MedplumClient } from '@medplum/core'
import { checkCode, codeFormat } from '../../shared/bots/code.ts'
import { UNRESTRICTED } from '../../shared/core/config/outbound.ts'
import { createLogger } from '../../shared/core/log.ts'
import { toJavaScript } from '../../shared/operations/bots/deploy.ts'
import { fetchOutbound } from '../../shared/outbound/fetch-outside.ts'
import { openExecutors } from '../../worker/bots/executors.ts'
import type { BotRun, HostCall, RunResult } from '../../worker/bots/run-result.ts'
import type { Input } from './calls.ts'

export interface SandboxRun {
  readonly result: RunResult
  readonly requests: number
  /** Time of the service's responses in ms. */
  readonly requestMs: number
  /** Time to the first executor in ms. */
  readonly startMs: number
}

const MEGABYTE = 1024 * 1024

/** Errors: those of a deployment, with line and column. */
export async function runInSandbox(
  medplum: MedplumClient,
  file: string,
  input: Input | undefined,
  timeoutSeconds: number,
): Promise<SandboxRun> {
  const filename = path.basename(file)
  const code = await toJavaScript(await readFile(file, 'utf8'), filename)
  checkCode(code, filename)
  const began = performance.now()
  const executors = await openExecutors({
    log: createLogger('error', 'script'),
    maxExecutors: 1,
    spares: 1,
  })
  const startMs = performance.now() - began
  const answers = { requests: 0, requestMs: 0 }
  try {
    const run: BotRun = {
      runId: randomUUID(),
      projectId: 'local',
      botKey: 'local',
      identity: 'local',
      code,
      codeHash: hash('sha256', code),
      format: codeFormat(code, filename),
      limits: {
        wallMs: timeoutSeconds * 1000,
        cpuMs: timeoutSeconds * 1000,
        memoryMb: 128,
        resultBytes: 6 * MEGABYTE,
        logBytes: MEGABYTE / 4,
      },
      event: await buildEvent(medplum, input, timeoutSeconds),
      inputKind: input?.kind ?? 'none',
      input: input?.text,
    }
    const host = {
      hasWritten: false,
      async answer(call: HostCall) {
        host.hasWritten ||= !/"method":"(GET|HEAD)"/.test(call.payload)
        const asked = performance.now()
        const answer = await answerCall(medplum, call)
        answers.requests++
        answers.requestMs += performance.now() - asked
        return answer
      },
    }
    const result = await executors.run(run, host, new AbortController().signal)
    return { result, ...answers, startMs }
  } finally {
    await executors.close()
  }
}

async function buildEvent(
  medplum: MedplumClient,
  input: Input | undefined,
  timeoutSeconds: number,
): Promise<string> {
  const { project, membership, profile } = await medplum.get('auth/me')
  return JSON.stringify({
    bot: { reference: 'Bot/local' },
    contentType: input?.contentType,
    headers: {},
    traceId: randomUUID(),
    attempt: 1,
    deadline: Date.now() + timeoutSeconds * 1000,
    secrets: await fetchSecrets(medplum, project),
    context: { baseUrl: medplum.getBaseUrl(), project, membership, profile },
  })
}

/** Returns no secrets to callers without access. */
async function fetchSecrets(
  medplum: MedplumClient,
  project: unknown,
): Promise<Record<string, unknown>> {
  const { id } = project as { id: string }
  const found = await medplum.get(`fhir/R4/Project/${id}`).catch(() => ({}))
  const secrets: { name: string }[] = found.secret ?? []
  return Object.fromEntries(secrets.map((one) => [one.name, one]))
}

interface Asked {
  readonly method?: string
  readonly path?: string
  readonly url?: string
  readonly redirect?: string
  readonly headers?: Record<string, string>
  readonly body?: string
  readonly encoding?: string
}

/** Answers like the worker's bridge, through the service. */
async function answerCall(medplum: MedplumClient, { kind, payload }: HostCall): Promise<string> {
  try {
    if (kind === 'token') return JSON.stringify({ accessToken: medplum.getAccessToken() })
    // Made by the sandbox glue; affects only the bot's author.
    const asked: Asked = JSON.parse(payload)
    const { method = 'GET', url = '', redirect = 'follow', headers = {}, encoding } = asked
    const isBytes = encoding === 'base64' || kind === 'fetch'
    const body =
      isBytes && asked.body !== undefined ? Buffer.from(asked.body, 'base64') : asked.body
    if (kind === 'fetch') {
      const outgoing = { url, method, headers, body, redirect }
      const fetched = await fetchOutbound(outgoing, UNRESTRICTED, AbortSignal.timeout(30_000))
      return JSON.stringify({ ...fetched, body: fetched.body.toString('base64') })
    }
    const response = await fetch(new URL(asked.path ?? '', `${medplum.getBaseUrl()}fhir/R4/`), {
      method,
      headers: { ...headers, Authorization: `Bearer ${medplum.getAccessToken()}` },
      ...(body === undefined ? {} : { body }),
    })
    const { status } = response
    const answered = { status, headers: Object.fromEntries(response.headers) }
    if (/json|text|xml/.test(response.headers.get('content-type') ?? 'text')) {
      return JSON.stringify({ ...answered, body: await response.text() })
    }
    const bytes = Buffer.from(await response.arrayBuffer())
    return JSON.stringify({ ...answered, body: bytes.toString('base64'), encoding: 'base64' })
  } catch (error) {
    return JSON.stringify({ error: error instanceof Error ? error.message : 'The call failed' })
  }
}
