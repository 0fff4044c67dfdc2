/** All operations of the service, for routing, the CapabilityStatement and checks. */

import { execute } from '../bots/execute.ts'
import { exportData } from '../export/kick-off.ts'
import { graphql } from '../graphql/operation.ts'
import { importResources } from '../import/kick-off.ts'
import { importRows } from '../import/terminology-import.ts'
import { expunge, reindex } from '../jobs/async-requests.ts'
import {
  agentMessages,
  agentStats,
  agentStatus,
  bulkStatus,
  fetchLogs,
  reloadConfig,
  upgrade,
} from '../operations/agents/commands.ts'
import { push } from '../operations/agents/push.ts'
import { deadLetters, discard } from '../operations/bots/dead-letters.ts'
import { deploy } from '../operations/bots/deploy.ts'
import { dryRun } from '../operations/bots/dry-run.ts'
import { diff, promote, releases, rollback } from '../operations/bots/releases.ts'
import { logs, replay, runs } from '../operations/bots/runs.ts'
import { apply } from '../operations/clinical/apply.ts'
import { docref, document } from '../operations/clinical/document.ts'
import { everything } from '../operations/clinical/everything.ts'
import { extract } from '../operations/clinical/extract.ts'
import { lastn } from '../operations/clinical/lastn.ts'
import { match, memberMatch } from '../operations/clinical/match.ts'
import { summary } from '../operations/clinical/summary.ts'
import { clone } from '../operations/projects/clone.ts'
import { explainPolicy } from '../operations/projects/explain-policy.ts'
import { setAccounts } from '../operations/projects/set-accounts.ts'
import { updateEmail } from '../operations/projects/update-email.ts'
import { csv } from '../operations/resources/csv.ts'
import { graph } from '../operations/resources/graph.ts'
import { meta, metaAdd, metaDelete } from '../operations/resources/meta.ts'
import { presignedUrl } from '../operations/resources/presigned-url.ts'
import { validate } from '../operations/resources/validate.ts'
import { book, hold } from '../operations/scheduling/book.ts'
import { find } from '../operations/scheduling/find.ts'
import { cancelAppointment, confirm } from '../operations/scheduling/settle.ts'
import { lookup, subsumes } from '../operations/terminology/lookup.ts'
import { translate } from '../operations/terminology/translate.ts'
import { validateSetCode, validateSystemCode } from '../operations/terminology/validate-code.ts'
import { init } from '../projects/init.ts'
import { rotateSecret, smartLaunch } from '../projects/provision.ts'
import { acceptedRanges } from '../request/negotiate.ts'
import { parametersReply } from '../request/parameters.ts'
import { jsonReply } from '../request/reply.ts'
import type { Operation } from '../request/request.ts'
import { redeliver, resend, subscriptionStatus } from '../subscriptions/pending-deliveries.ts'
import { wsBindingToken } from '../subscriptions/socket-subscriptions.ts'
import { subscriptionEvents } from '../subscriptions/topic-events.ts'
import { expand, expandProfile } from '../terminology/expand.ts'
import { cancel } from './jobs.ts'

const VERSION = '4.0'
const FHIR_TYPE = 'application/fhir+json'

/** FHIR versions served, as Parameters if Accept names FHIR: https://hl7.org/fhir/R4/capabilitystatement-operation-versions.html */
const versions: Operation = {
  name: 'versions',
  on: [{ level: 'system' }],
  standard: 'CapabilityStatement',
  methods: ['GET'],
  text: { summary: 'Ask which versions of FHIR are served', answer: 'object' },
  ownFormat: true,
  async run({ request }) {
    if (acceptedRanges(request.headers.accept).includes(FHIR_TYPE)) {
      return parametersReply([
        ['version', 'valueCode', VERSION],
        ['default', 'valueCode', VERSION],
      ])
    }
    const body = { versions: [VERSION], default: VERSION }
    return jsonReply(200, body, { 'Content-Type': 'application/json; charset=utf-8' })
  },
}

export const operations: readonly Operation[] = [
  agentMessages,
  agentStats,
  agentStatus,
  apply,
  book,
  hold,
  confirm,
  cancelAppointment,
  bulkStatus,
  cancel,
  clone,
  csv,
  deadLetters,
  deploy,
  diff,
  discard,
  docref,
  document,
  dryRun,
  everything,
  execute,
  expand,
  expandProfile,
  explainPolicy,
  exportData,
  expunge,
  extract,
  fetchLogs,
  find,
  graph,
  graphql,
  importResources,
  importRows,
  init,
  lastn,
  logs,
  lookup,
  match,
  memberMatch,
  meta,
  metaAdd,
  metaDelete,
  promote,
  presignedUrl,
  push,
  redeliver,
  reindex,
  releases,
  reloadConfig,
  replay,
  resend,
  rollback,
  rotateSecret,
  runs,
  setAccounts,
  smartLaunch,
  subscriptionEvents,
  subscriptionStatus,
  subsumes,
  summary,
  translate,
  updateEmail,
  upgrade,
  validate,
  validateSetCode,
  validateSystemCode,
  versions,
  wsBindingToken,
]
