/**
 * Writes docs/reference from the code: settings, limits, errors, operations, search parameters, metrics; and the badges of README.md.
 * `npm run reference` writes the pages; a test checks that they are current.
 */
import { globSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { operations } from '../../shared/api/operations.ts'
import { botLimits, MAX_CODE_BYTES, maxAttempts, maxQueueMs } from '../../shared/bots/bot.ts'
import { describeSettings, readConfig } from '../../shared/core/config/config.ts'
import * as errors from '../../shared/core/errors.ts'
import { BOT_EXTENSION, botExtensionNames } from '../../shared/fhir/bot-extensions.ts'
import { resourceTypes, searchParameters } from '../../shared/fhir/definitions.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { FETCH_TIMEOUT_MS, MAX_FETCHED_BYTES } from '../../shared/outbound/fetch-outside.ts'
import { MAX_DEPTH } from '../../shared/request/request.ts'
import { MAX_CONCURRENT, MAX_CONTENT_BYTES, MAX_FHIR_CALLS } from '../../worker/bots/bridge.ts'
import { executorsWithin, runsWithin } from '../../worker/bots/executors.ts'
import { MAX_FETCHES } from '../../worker/bots/fetches.ts'
import { MOST_HELD } from '../../worker/bots/slots.ts'
import { MAX_CALLS, MAX_TIMERS } from '../../worker/executor/isolate-port.ts'
import {
  MAX_ITERATIONS,
  MAX_MODULUS_BITS,
  MAX_SCRYPT_BLOCKS,
} from '../../worker/executor/node-calls.ts'
import { MOST_CONTEXTS, TURN_MS } from '../../worker/executor/shared-isolate.ts'
import { settingDescriptions } from './meanings.ts'

const ROOT = join(import.meta.dirname, '../..')
const FOLDER = join(ROOT, 'docs/reference')
const IMAGES = join(ROOT, 'docs/images')

export function referencePages(): Readonly<Record<string, string>> {
  return {
    'settings.md': page('Settings', SETTINGS_INTRO, settings()),
    'limits.md': page(
      'Limits',
      LIMITS_INTRO,
      `## Of bots\n\n${botLimitTable()}\n\n## Of requests\n\n${requestLimits()}`,
    ),
    'errors.md': page('Error codes', ERRORS_INTRO, errorCodes()),
    'operations.md': page('Operations', OPERATIONS_INTRO, operationList()),
    'search-parameters.md': page('Search parameters', SEARCH_INTRO, parameters()),
    'metrics.md': page('Metrics', METRICS_INTRO, metrics()),
  }
}

function page(title: string, intro: string, body: string): string {
  return `# ${title}\n\n<!-- npm run reference -->\n\n${intro}\n\n${body}\n`
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`
  return [line(head), `|${'---|'.repeat(head.length)}`, ...rows.map(line)].join('\n')
}

const SETTINGS_INTRO = `Environment variables, read once at start. If a value is invalid, or a name looks like a misspelt setting, the process ends with one
line that names it. [Project settings](../projects.md) lists the settings of a single project.`

function settings(): string {
  const rows = [...describeSettings()].map(([name, { form, byDefault }]) => [
    `\`${name}\``,
    // Depends on the machine's memory.
    byDefault === '' || /^(WEB|WORKER)_MEMORY_MB$/.test(name) ? '' : `\`${byDefault}\``,
    describeSetting(name, form),
  ])
  return table(['setting', 'default', 'meaning'], rows)
}

function describeSetting(name: string, form: string): string {
  const plain = /^(text|address, required|comma list)$/.test(form)
  const shown = form.replaceAll('<', '&lt;')
  return `${settingDescriptions[name] ?? ''}${plain ? '' : ` (${shown})`}`
}

const LIMITS_INTRO = `Requests above these limits are rejected; a Bot that asks for more than the third column gets that much. A name in capitals is a [setting](settings.md), a name like \`bot-cpuMs\` an [extension
of the Bot](../bots.md#limits). An empty cell in the third column means that only the setting limits the value.`

const ENDLESS = 1_000_000_000

function botLimitTable(): string {
  const config = readConfig({ DATABASE_URL: 'postgres://x/x', REDIS_URL: 'redis://x' })
  const plain: Resource = { resourceType: 'Bot' }
  const greedy: Resource = {
    ...plain,
    timeout: ENDLESS,
    extension: ['cpuMs', 'memoryMb', 'maxQueueSeconds', 'retry'].map((name) => ({
      url: `${BOT_EXTENSION}${name}`,
      valueInteger: ENDLESS,
    })),
  }
  const [usual, most] = [botLimits(plain, config), botLimits(greedy, config)]
  const unlimited = (cap: number) => (cap === 0 ? 'none' : `${cap}`)
  return `| limit | default | most | changed by |
|---|--:|--:|---|
| wall time | ${s(usual.wallMs)} | ${s(most.wallMs)} | \`Bot.timeout\`; \`BOT_TIMEOUT_MS\`, \`BOT_TIMEOUT_MAX_MS\` |
| processor time | ${s(usual.cpuMs)} | ${s(most.cpuMs)} | \`bot-cpuMs\` |
| memory | ${usual.memoryMb} MB | ${most.memoryMb} MB | \`bot-memoryMb\`; \`BOT_MEMORY_MB\` |
| result | ${mb(usual.resultBytes)} |  | \`BOT_RESULT_MAX_BYTES\` |
| log | ${mb(usual.logBytes)} |  | \`BOT_LOG_MAX_BYTES\` |
| wait for a worker | ${s(maxQueueMs(plain))} | ${s(maxQueueMs(greedy))} | \`bot-maxQueueSeconds\` |
| wait of a caller before it gets 202 | ${s(config.executeWaitMs)} |  | \`EXECUTE_WAIT_MS\`, \`Prefer: wait\` |
| attempts of an asynchronous run | ${maxAttempts(plain)} | ${maxAttempts(greedy)} | \`bot-retry\` |
| input | ${mb(config.maxBodyBytes)} |  | \`MAX_BODY_BYTES\` |
| waiting runs of a project | ${config.queueBacklogMax} |  | \`QUEUE_BACKLOG_MAX\` |
| runs of a bot at a time | ${unlimited(config.botConcurrency)} |  | \`bot-maxConcurrency\`; \`BOT_CONCURRENCY\` |
| runs of a project at a time | ${unlimited(config.projectConcurrency)} |  | \`botConcurrency\` of the Project; \`PROJECT_CONCURRENCY\` |
| runs that use the processor, of a queue in a worker | ${config.workerConcurrency} |  | \`WORKER_CONCURRENCY\` |
| runs of a worker at a time, with 512 MB | ${runsWithin(512)} |  | \`WORKER_MEMORY_MB\` |
| the same with 2048 MB | ${runsWithin(2048)} |  | \`WORKER_MEMORY_MB\` |
| projects with an executor, with 512 MB | ${executorsWithin(512)} |  | \`WORKER_MEMORY_MB\` |
| the same with 2048 MB | ${executorsWithin(2048)} |  | \`WORKER_MEMORY_MB\` |
| runs that a worker holds for their turn | ${MOST_HELD} |  | fixed |
| code | ${mb(MAX_CODE_BYTES)} |  | fixed |
| FHIR requests of a run | ${MAX_FHIR_CALLS} |  | fixed |
| FHIR requests of a run at a time | ${MAX_CONCURRENT} |  | fixed |
| response to a FHIR request of a run | ${mb(MAX_CONTENT_BYTES)} |  | fixed |
| fetches of a run | ${MAX_FETCHES} |  | fixed |
| a fetch | ${s(FETCH_TIMEOUT_MS)} without a byte, ${mb(MAX_FETCHED_BYTES)} |  | fixed |
| calls of a run in all, except for parts of streams | ${MAX_CALLS} |  | fixed |
| runs of a \`bot-concurrent\` in an isolate | ${MOST_CONTEXTS} |  | fixed |
| computing of such a run at a time | ${s(TURN_MS)} |  | fixed |
| timers of a run at a time | ${MAX_TIMERS} |  | fixed |
| iterations of a call of PBKDF2 | ${MAX_ITERATIONS} |  | fixed |
| memory of a call of scrypt | ${mb(128 * MAX_SCRYPT_BLOCKS)} |  | fixed |
| bits of an RSA key | ${MAX_MODULUS_BITS} |  | fixed |
| bots that call each other | ${MAX_DEPTH} deep |  | fixed |

Extensions of a Bot: ${botExtensionNames.map((name) => `\`bot-${name}\``).join(', ')}.`
}

const s = (ms: number) => `${ms / 1000} s`
const mb = (bytes: number) =>
  bytes < 1024 * 1024 ? `${bytes / 1024} KiB` : `${bytes / 1024 / 1024} MiB`

function requestLimits(): string {
  const named =
    /^(MAX|LARGE|BATCH|RATE|AUTH_RATE|PASSWORD_QUEUE|REQUEST_IDLE|ANONYMOUS|EXPORT_TTL|DATABASE_POOL|REDIS_TIMEOUT)/
  const rows = [...describeSettings()].filter(([name]) => named.test(name))
  return table(
    ['setting', 'default', 'limit'],
    rows.map(([name, { byDefault }]) => [
      `\`${name}\``,
      byDefault,
      settingDescriptions[name] ?? '',
    ]),
  )
}

const ERRORS_INTRO = `Every error is an OperationOutcome: \`issue[].code\` is the column "code", \`details.text\` a sentence that names the cause,
\`expression\` the element or parameter at fault. \`id\` is the id of the outcome, from which Medplum's SDK derives the status.
[Guarantees](../promises.md) gives the next step for each status, [troubleshooting](../troubleshooting.md) the fix for single messages.`

const FAILURES: readonly (readonly [errors.HttpError, string])[] = [
  [errors.badRequest('…'), 'a value is invalid or breaks a rule, which the text names'],
  [errors.badStructure('…'), 'the body does not have the structure of its type'],
  [errors.notSupported('…'), 'the request uses an unsupported feature'],
  [errors.unknownDefinition('…'), 'the request needs a definition that does not exist'],
  [errors.tooCostly('…'), 'the request is too expensive'],
  [errors.unauthorized(''), 'the token is missing, invalid, expired or revoked'],
  [errors.forbidden(), 'the caller lacks the right; the log names the rule'],
  [errors.notFound(), 'the id does not exist, or the caller may not see it'],
  [errors.methodNotAllowed('GET'), 'the path does not support the method'],
  [errors.notAcceptable('…'), 'the requested format is not supported'],
  [errors.conflict('…'), 'the request conflicts with another one, or with the stored state'],
  [errors.gone(), 'the resource was deleted; its history is available'],
  [errors.preconditionFailed(), '`If-Match` names an outdated version'],
  [errors.multipleMatches(), 'the condition matches several resources'],
  [errors.tooLarge(), 'the body exceeds `MAX_BODY_BYTES` or `MAX_BUNDLE_BYTES`'],
  [errors.unsupportedMediaType(), 'the `Content-Type` is not supported'],
  [errors.businessRule('…'), 'the request breaks a rule of the platform'],
  [
    errors.tooManyRequests(1),
    'the caller has reached a limit; wait for the seconds in `Retry-After`',
  ],
  [errors.unavailable('Database'), 'PostgreSQL, Redis, the storage or all workers are unavailable'],
  [errors.serverTimeout(), 'the request took too long'],
]

function errorCodes(): string {
  const rows = FAILURES.map(([{ status, outcome }, what]) => {
    const [first] = outcome.issue
    return [String(status), `\`${first?.code}\``, outcome.id ?? '', first?.details.text ?? '', what]
  })
  return `${table(['status', 'code', 'id', 'text', 'cause'], rows)}\n\n${STABLE_VALUES}`
}

/** Texts that are the same in Medplum's SDK or server. */
export const KEPT_TEXTS = [
  'All OK',
  'Created',
  'Accepted',
  'Unauthorized',
  'Token expired',
  'Forbidden',
  'Not found',
  'Gone',
  'Unsupported media type',
  'Multiple resources found matching condition',
  'Too Many Requests',
  'Server timeout',
  'Internal server error',
  'Unknown resource type',
  'Content could not be parsed',
  'Bots not enabled',
  'Email or password is invalid',
  'Login not found',
  'Login revoked',
]

const STABLE_VALUES = `## Values that clients compare

Programs may rely on these values; they change only with an entry in the changelog.

| value | used by |
|---|---|
| \`id\` of an outcome | Medplum's SDK: \`isOk\`, \`isCreated\`, \`isAccepted\`, \`isNotFound\`, \`isGone\`, \`isConflict\`, \`isUnauthenticated\`, \`getStatus\`. Successes have \`ok\`, \`created\` or \`accepted\` |
| \`Content-Location\` of a 202, repeated in \`issue[0].diagnostics\` | the SDK's polling; a browser may hide the header from it |
| \`issue[0].expression\` | forms that show the error next to its field, such as those of Medplum's React components |
| \`issue[1].code\` \`expired\` of a 401 | programs that distinguish an expired token from an invalid one |
| \`issue[0].details.coding[0].code\` of a 409, an SQL state | programs that retry: the code is present only if a retry may succeed |
| \`error\` in a response of \`/oauth2\`, \`WWW-Authenticate\` | OAuth libraries: \`invalid_grant\`, \`invalid_client\`, \`login_required\`, \`consent_required\`, \`invalid_token\`, \`insufficient_scope\` and the other codes of RFC 6749, RFC 6750, RFC 8693 and OpenID Connect |
| \`type\` \`agent:error\` on the web socket of an agent | Medplum's agent |

Medplum's SDK and command line tool compare no text. For programs that do, these texts are the same as Medplum's:
${KEPT_TEXTS.map((text) => `\`${text}\``).join(', ')}.`

const OPERATIONS_INTRO = `Operations have a name that begins with a dollar sign, and are called at these paths below \`/fhir/R4\`. The [API description](../guides/api.md)
has an example of each, with the bodies of request and response.`

function operationList(): string {
  const rows = operations.map(({ name, on, methods, standard, text }) => {
    const { summary, query = {} } = text
    const places = on.map(({ level, type = '[type]' }) => {
      const place = { system: '', type: `${type}/`, instance: `${type}/[id]/` }[level]
      return `\`${place}$${name}\``
    })
    const inputs = Object.keys(query).map((input) => `\`${input}\``)
    return [
      places.join(', '),
      methods.join(', '),
      summary,
      inputs.join(' '),
      standard === undefined ? '' : 'yes',
    ]
  })
  return table(['operation', 'methods', 'effect', 'parameters', 'FHIR standard'], rows)
}

const SEARCH_INTRO = `The search parameters of each type of FHIR R4 and of the platform. \`_id\`, \`_lastUpdated\`, \`_tag\`, \`_profile\`, \`_security\`,
\`_source\`, \`_has\`, \`_list\` and \`_filter\` work with every type. [Search by example](../guides/search.md) shows modifiers,
prefixes and chains.`

function parameters(): string {
  const sections = resourceTypes.map((type) => {
    const own = [...searchParameters(type).values()].filter(({ code }) => !code.startsWith('_'))
    const names = own.map(({ code, type: kind }) => `\`${code}\` ${kind}`).sort()
    return `- **${type}**: ${names.join(', ') || 'only those of every type'}`
  })
  return sections.join('\n')
}

const METRICS_INTRO = `Web and each worker return these metrics at \`GET /metrics\`, in the format of Prometheus. Requests from other machines need \`METRICS_TOKEN\`.`

const METRIC =
  /(Counter|[Gg]auge|Histogram)\((?:\{[^}]*?name: )?\s*'(\w+)',\s*(?:help:\s*)?(?:'([^']*)'|"([^"]*)")/g

function metrics(): string {
  const files = globSync(['server/http/*metrics.ts', 'shared/export/*.ts', 'worker/**/*.ts'], {
    cwd: ROOT,
  }).sort()
  const rows = files.flatMap((file) =>
    [...readFileSync(join(ROOT, file), 'utf8').matchAll(METRIC)].map(
      ([, kind = '', name, one, two]) => [
        `\`${name}\``,
        kind.toLowerCase(),
        one ?? two ?? '',
        file.startsWith('server') ? 'web' : 'worker',
      ],
    ),
  )
  return table(['metric', 'kind', 'meaning', 'reported by'], rows)
}

const CHARACTER_PX = 6.6
const PADDING_PX = 6

/** Returns the text of each SVG of docs/images by its name, from package.json. */
export function badges(): Readonly<Record<string, string>> {
  const file = join(import.meta.dirname, '../../package.json')
  const { license, version, engines } = JSON.parse(readFileSync(file, 'utf8'))
  return {
    'badge-licence.svg': badge('licence', license, '#1864ab'),
    'badge-version.svg': badge('version', version, '#1864ab'),
    'badge-node.svg': badge('Node', engines.node, '#2b8a3e'),
  }
}

function badge(label: string, value: string, colour: string): string {
  const [left, right] = [measureWidth(label), measureWidth(value)]
  const text = (x: number, shown: string) => `<text x="${x}" y="14">${shown}</text>`
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${left + right}" height="20" role="img" aria-label="${label}: ${value}">
<rect width="${left}" height="20" fill="#495057"/><rect x="${left}" width="${right}" height="20" fill="${colour}"/>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">${text(left / 2, label)}${text(left + right / 2, value)}</g>
</svg>
`
}

function measureWidth(text: string): number {
  return Math.round(text.length * CHARACTER_PX) + 2 * PADDING_PX
}

if (import.meta.main) {
  for (const [name, text] of Object.entries(referencePages()))
    writeFileSync(join(FOLDER, name), text)
  for (const [name, text] of Object.entries(badges())) writeFileSync(join(IMAGES, name), text)
}
