/**
 * Writes docs/reference from the code: settings, limits, errors, operations, search parameters, metrics.
 * `npm run reference` writes the pages; a test checks that they are current.
 */
import { globSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { operationTexts } from '../../server/openapi/operation-texts.ts'
import { operations } from '../../shared/api/operations.ts'
import { describeSettings } from '../../shared/core/config/config.ts'
import { settingDescriptions } from '../../shared/core/config/meanings.ts'
import * as errors from '../../shared/core/errors.ts'
import { resourceTypes, searchParameters } from '../../shared/fhir/definitions.ts'
import { limitsTable } from './limits.ts'

const ROOT = join(import.meta.dirname, '../..')
const FOLDER = join(ROOT, 'docs/reference')

export function referencePages(): Readonly<Record<string, string>> {
  return {
    'settings.md': page('Settings', SETTINGS_INTRO, settings()),
    'limits.md': page(
      'Limits',
      LIMITS_INTRO,
      `## Of bots\n\n${limitsTable()}\n\n## Of requests\n\n${requestLimits()}`,
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

const SETTINGS_INTRO = `Environment variables, read once at start. A value that cannot be used is refused at start, in one line that names it; a
variable that looks like a misspelt setting is named with the one that is meant. What a project can be set to is in
[projects](../projects.md).`

function settings(): string {
  const rows = [...describeSettings()].map(([name, { form, byDefault }]) => [
    `\`${name}\``,
    // Depends on the machine's memory.
    byDefault === '' || name === 'WORKER_MEMORY_MB' ? '' : `\`${byDefault}\``,
    describeSetting(name, form),
  ])
  return table(['setting', 'default', 'meaning'], rows)
}

function describeSetting(name: string, form: string): string {
  const plain = /^(text|address, required|comma list)$/.test(form)
  const shown = form.replaceAll('<', '&lt;')
  return `${settingDescriptions[name] ?? ''}${plain ? '' : ` (${shown})`}`
}

const LIMITS_INTRO = `What is refused because it is too much. A name in capitals is a [setting](settings.md), a name like \`bot-cpuMs\` an extension
of the Bot, as [bots](../bots.md) says. An empty cell in the third column means that the setting alone decides.`

function requestLimits(): string {
  const named =
    /^(MAX|LARGE|BATCH|RATE|AUTH_RATE|PASSWORD_QUEUE|REQUEST_IDLE|ANONYMOUS|EXPORT_TTL|DATABASE_POOL|REDIS_TIMEOUT)/
  const rows = [...describeSettings()].filter(([name]) => named.test(name))
  return table(
    ['setting', 'default', 'what it bounds'],
    rows.map(([name, { byDefault }]) => [
      `\`${name}\``,
      byDefault,
      settingDescriptions[name] ?? '',
    ]),
  )
}

const ERRORS_INTRO = `A refusal is an OperationOutcome: \`issue[].code\` is the column "code", \`details.text\` a sentence that names the cause,
\`expression\` the element or parameter at fault. \`id\` is the id of the outcome, by which Medplum's SDK knows some of them.
[Promises](../promises.md) says what to do on each status, [troubleshooting](../troubleshooting.md) what single sentences mean.`

const FAILURES: readonly (readonly [errors.HttpError, string])[] = [
  [errors.badRequest('…'), 'a value or rule that is broken, named in the text'],
  [errors.badStructure('…'), 'a body that has not the shape of its type'],
  [errors.notSupported('…'), 'something that is not served'],
  [errors.unknownDefinition('…'), 'a definition that the request needs and nobody knows'],
  [errors.tooCostly('…'), 'work that would cost too much'],
  [errors.unauthorized(''), 'no token, or one that is not good any more'],
  [errors.forbidden(), 'a token whose member may not; the log names the rule'],
  [errors.notFound(), 'nothing of that id, or nothing that the caller may see'],
  [errors.methodNotAllowed('GET'), 'a method that the path has not'],
  [errors.notAcceptable('…'), 'a format that is not served'],
  [errors.conflict('…'), 'something else that was there first, or at the same time'],
  [errors.gone(), 'a resource that was deleted; its history is there'],
  [errors.preconditionFailed(), '`If-Match` names another version than the stored one'],
  [errors.multipleMatches(), 'a condition that several resources fulfil'],
  [errors.tooLarge(), 'a body beyond `MAX_BODY_BYTES` or `MAX_BUNDLE_BYTES`'],
  [errors.unsupportedMediaType(), 'a `Content-Type` that is not read'],
  [errors.businessRule('…'), 'a rule of the platform'],
  [
    errors.tooManyRequests(1),
    'more requests than the limits allow; `Retry-After` says when to come back',
  ],
  [errors.unavailable('Database'), 'PostgreSQL, Redis, the storage or the workers are away'],
  [errors.serverTimeout(), 'its time was over'],
]

function errorCodes(): string {
  const rows = FAILURES.map(([{ status, outcome }, what]) => {
    const [first] = outcome.issue
    return [String(status), `\`${first?.code}\``, outcome.id ?? '', first?.details.text ?? '', what]
  })
  return table(['status', 'code', 'id', 'text', 'means'], rows)
}

const OPERATIONS_INTRO = `What is called by a name with a dollar below \`/fhir/R4\`. [The API's description](../guides/api.md) has each with its bodies and an
example.`

function operationList(): string {
  const rows = operations.map(({ name, on, methods, standard }) => {
    const { summary = '', query = {} } = operationTexts[name] ?? {}
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
  return table(['operation', 'methods', 'does', 'parameters', 'of the standard'], rows)
}

const SEARCH_INTRO = `Every parameter of FHIR R4 and of the platform's own types. \`_id\`, \`_lastUpdated\`, \`_tag\`, \`_profile\`, \`_security\`,
\`_source\`, \`_has\`, \`_list\` and \`_filter\` go with every type. [Search by example](../guides/search.md) shows modifiers,
prefixes and chains.`

function parameters(): string {
  const sections = resourceTypes.map((type) => {
    const own = [...searchParameters(type).values()].filter(({ code }) => !code.startsWith('_'))
    const names = own.map(({ code, type: kind }) => `\`${code}\` ${kind}`).sort()
    return `- **${type}**: ${names.join(', ') || 'none of its own'}`
  })
  return sections.join('\n')
}

const METRICS_INTRO = `\`GET /metrics\` in the format of Prometheus, of web and of each worker. Only this machine may ask, or whoever has \`METRICS_TOKEN\`.`

const METRIC =
  /(Counter|Gauge|Histogram)\((?:\{[^}]*?name: )?\s*'(\w+)',\s*(?:help:\s*)?(?:'([^']*)'|"([^"]*)")/g

function metrics(): string {
  const files = globSync(['server/http/metrics.ts', 'shared/export/*.ts', 'worker/**/*.ts'], {
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
  return table(['metric', 'kind', 'is', 'counted by'], rows)
}

if (import.meta.main) {
  for (const [name, text] of Object.entries(referencePages()))
    writeFileSync(join(FOLDER, name), text)
}
