/** The `medplum` object of a bot: the SDK's methods, answered by the worker as the run's identity. */

const { ContentType } = require('./constants.cjs')
const { ask, baseUrl, call, currentContext, startRun } = require('./requests.cjs')
const {
  ResourceClient,
  refuse,
  searchPath,
  segment,
  requireType,
} = require('./resource-client.cjs')

class MedplumClient extends ResourceClient {
  get isInitialized() {
    return true
  }

  async getInitPromise() {}

  async executeBatch(bundle, options) {
    return ask('POST', '', { body: bundle, options })
  }

  async graphql(query, operationName, variables, options) {
    const body = { query, operationName, variables }
    return ask('POST', '$graphql', { body, contentType: ContentType.JSON, options })
  }

  async readPatientEverything(id, options) {
    return ask('GET', `Patient/${segment(id, 'id')}/$everything`, { options })
  }

  async readPatientSummary(id, options) {
    return ask('GET', `Patient/${segment(id, 'id')}/$summary`, { options })
  }

  async readResourceGraph(type, id, graph, options) {
    return ask('GET', searchPath(`${type}/${segment(id, 'id')}/$graph`, { graph }), { options })
  }

  async validateResource(resource, options) {
    return ask('POST', `${requireType(resource)}/$validate`, { body: resource, options })
  }

  async valueSetExpand(params, options) {
    return ask('GET', searchPath('ValueSet/$expand', params), { options })
  }

  async executeBot(bot, body, contentType, options) {
    const path =
      typeof bot === 'string'
        ? `Bot/${segment(bot, 'id')}/$execute`
        : searchPath('Bot/$execute', { identifier: `${bot.system}|${bot.value}` })
    return ask('POST', path, { body, contentType, options })
  }

  async sendEmail(mail, options) {
    const request = { body: mail, contentType: ContentType.JSON, options }
    return ask('POST', '/email/v1/send', request)
  }

  async invite(projectId, body) {
    return ask('POST', `/admin/projects/${segment(projectId, 'projectId')}/invite`, { body })
  }

  async createBinary(...given) {
    return require('./files.cjs').createBinary(...given)
  }

  async createAttachment(...given) {
    return require('./files.cjs').createAttachment(...given)
  }

  async createMedia(given, options) {
    return require('./files.cjs').createMedia(this, given, options)
  }

  async uploadMedia(data, contentType, filename, additionalFields, options) {
    return this.createMedia({ data, contentType, filename, additionalFields }, options)
  }

  async createDocumentReference(given, options) {
    return require('./files.cjs').createDocumentReference(this, given, options)
  }

  async createComment(resource, text, options) {
    return require('./files.cjs').createComment(this, resource, text, options)
  }

  async download(url, options) {
    return require('./files.cjs').download(url, options)
  }

  async createPdf(...given) {
    return require('./files.cjs').createPdf(...given)
  }

  async pushToAgent(agent, destination, body, contentType, waitForResponse, options = {}) {
    const { waitTimeout, returnAck, ...rest } = options
    const { getReferenceString, resolveId } = require('./resources.cjs')
    const to = typeof destination === 'string' ? destination : getReferenceString(destination)
    const message = { destination: to, body, contentType, waitForResponse, waitTimeout, returnAck }
    const path = `Agent/${segment(resolveId(agent), 'agent')}/$push`
    return ask('POST', path, { body: message, contentType: ContentType.FHIR_JSON, options: rest })
  }

  async startAsyncRequest(url, options) {
    const headers = { ...options?.headers, Prefer: 'respond-async' }
    return this.post(url, undefined, undefined, { ...options, headers })
  }

  async bulkExport(level = '', types, since, options) {
    const path = `${level ? `${level}/` : ''}$export`
    const query = { _type: types || undefined, _since: since || undefined }
    return this.startAsyncRequest(`fhir/R4/${searchPath(path, query)}`, options)
  }

  getBaseUrl() {
    return baseUrl()
  }

  getAuthorizeUrl() {
    return `${baseUrl()}oauth2/authorize`
  }

  getTokenUrl() {
    return `${baseUrl()}oauth2/token`
  }

  getLogoutUrl() {
    return `${baseUrl()}oauth2/logout`
  }

  fhirUrl(...path) {
    const { URL } = require('../web/url.cjs')
    return new URL(`${baseUrl()}fhir/R4/${path.join('/')}`)
  }

  fhirSearchUrl(type, query) {
    const { URL } = require('../web/url.cjs')
    return new URL(`${baseUrl()}fhir/R4/${searchPath(type, query)}`)
  }

  getProfile() {
    return parseDetails(currentContext()).profile
  }

  async getProfileAsync() {
    return this.getProfile()
  }

  getProject() {
    return parseDetails(currentContext()).project
  }

  getProjectMembership() {
    return parseDetails(currentContext()).membership
  }

  getAccessPolicy() {
    return parseDetails(currentContext()).accessPolicy
  }

  getUserConfiguration() {
    return parseDetails(currentContext()).config
  }

  isProjectAdmin() {
    return parseDetails(currentContext()).membership?.admin === true
  }

  isSuperAdmin() {
    return parseDetails(currentContext()).project?.superAdmin === true
  }

  isLoading() {
    return false
  }

  isAuthenticated() {
    return true
  }

  /** Preset for a bot whose code contains this word; `refreshIfExpired` sets it for others. */
  getAccessToken() {
    return currentContext().accessToken
  }

  async refreshIfExpired() {
    const context = currentContext()
    context.accessToken = (await call('token', {})).accessToken
  }

  getDefaultHeaders() {
    return {}
  }

  getLogins() {
    return []
  }

  getLogLevel() {
    return 'none'
  }

  rateLimitStatus() {
    return []
  }
}

/** Parses lazily, since few bots need the details. */
function parseDetails(context) {
  context.parsedDetails ??= JSON.parse(context.details ?? '{}')
  return context.parsedDetails
}

// No-ops: this client has no cache and no log.
for (const name of [
  'addEventListener',
  'clear',
  'clearActiveLogin',
  'dispatchEvent',
  'getActiveLogin',
  'getCached',
  'getCachedReference',
  'invalidateAll',
  'invalidateSearches',
  'invalidateUrl',
  'removeEventListener',
  'requestProfileSchema',
  'requestSchema',
  'setLogLevel',
  'setVerbose',
]) {
  const isAsync = name.startsWith('request')
  MedplumClient.prototype[name] = () => (isAsync ? Promise.resolve() : undefined)
}

for (const name of [
  'callCdsService',
  'ensureCodeChallenge',
  'exchangeExternalAccessToken',
  'fhircastConnect',
  'fhircastGetContext',
  'fhircastPublish',
  'fhircastSubscribe',
  'fhircastUnsubscribe',
  'getCdsServices',
  'getExternalAuthRedirectUri',
  'getFhircastHubUrl',
  'getMasterSubscriptionEmitter',
  'getSubscriptionManager',
  'processCode',
  'setAccessToken',
  'setActiveLogin',
  'setBasicAuth',
  'signInWithExternalAuth',
  'signInWithRedirect',
  'signOut',
  'signOutWithRedirect',
  'startClientLogin',
  'startGoogleLogin',
  'startJwtAssertionLogin',
  'startJwtBearerLogin',
  'startLogin',
  'startNewPatient',
  'startNewProject',
  'startNewUser',
  'startPkce',
  'subscribeToCriteria',
  'unsubscribeFromCriteria',
]) {
  MedplumClient.prototype[name] = () => refuse('Not supported in a bot')
}

/** Creates the client of a new run; every MedplumClient of the isolate then acts for that run. */
function createClient(runHost, context) {
  startRun(runHost, context)
  return new MedplumClient()
}

module.exports = { MedplumClient, createClient }
