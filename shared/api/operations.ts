/** Every operation of the service: routing, the CapabilityStatement and checks read this table. */
import { deploy } from '../bots/deploy.ts'
import { execute } from '../bots/execute.ts'
import { logs, replay, runs } from '../bots/runs.ts'
import { exportData } from '../bulk/exports/export.ts'
import { importRows } from '../bulk/imports/import.ts'
import { importResources } from '../bulk/imports/resources.ts'
import { graphql } from '../graphql/serve.ts'
import { expunge, reindex } from '../jobs/async-requests.ts'
import { clone } from '../projects/clone/clone.ts'
import { init } from '../projects/init.ts'
import { rotateSecret, smartLaunch } from '../projects/provision.ts'
import { setAccounts } from '../projects/set-accounts.ts'
import { updateEmail } from '../projects/update-email.ts'
import { jsonReply } from '../request/reply.ts'
import type { Operation } from '../request/request.ts'
import { csv } from '../rest/csv.ts'
import { everything } from '../rest/everything.ts'
import { explainPolicy } from '../rest/explain-policy.ts'
import { graph } from '../rest/graph.ts'
import { meta, metaAdd, metaDelete } from '../rest/meta.ts'
import { apply } from '../rest/operations/apply.ts'
import { book } from '../rest/operations/book.ts'
import { docref, document } from '../rest/operations/document.ts'
import { extract } from '../rest/operations/extract.ts'
import { find } from '../rest/operations/find.ts'
import { lastn } from '../rest/operations/lastn.ts'
import { match, memberMatch } from '../rest/operations/match.ts'
import { summary } from '../rest/operations/summary.ts'
import { validate } from '../rest/validate.ts'
import { redeliver, resend, subscriptionStatus } from '../subscriptions/pending-deliveries.ts'
import { wsBindingToken } from '../subscriptions/socket-subscriptions.ts'
import { expand, expandProfile } from '../terminology/expand.ts'
import { lookup, subsumes } from '../terminology/lookup.ts'
import { translate } from '../terminology/translate.ts'
import { validateCode } from '../terminology/validate-code.ts'
import { cancel } from './jobs.ts'

/** FHIR versions served: https://hl7.org/fhir/R4/capabilitystatement-operation-versions.html */
const versions: Operation = {
  name: 'versions',
  on: [{ level: 'system' }],
  standard: 'CapabilityStatement',
  methods: ['GET'],
  ownFormat: true,
  async run() {
    const body = { versions: ['4.0'], default: '4.0' }
    return jsonReply(200, body, { 'Content-Type': 'application/json; charset=utf-8' })
  },
}

export const operations: readonly Operation[] = [
  apply,
  book,
  cancel,
  clone,
  csv,
  deploy,
  docref,
  document,
  everything,
  execute,
  expand,
  expandProfile,
  explainPolicy,
  exportData,
  expunge,
  extract,
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
  redeliver,
  reindex,
  replay,
  resend,
  rotateSecret,
  runs,
  setAccounts,
  smartLaunch,
  subscriptionStatus,
  subsumes,
  summary,
  translate,
  updateEmail,
  validate,
  validateCode,
  versions,
  wsBindingToken,
]
