import { defineConfig } from 'vitepress'

const listed = (pages: string[][]) => pages.map(([text = '', page = '']) => ({ text, link: `/${page}` }))

/** `npm run docs` writes the site to dist/docs; web serves it at /docs. */
export default defineConfig({
  title: 'Botica',
  description: 'FHIR R4 with projects, access policies and sandboxed bots',
  base: '/docs/',
  outDir: '../dist/docs',
  head: [['link', { rel: 'icon', href: 'data:,' }]],
  cleanUrls: true,
  // An inline script in each page would need a separate hash in the page's content security policy.
  appearance: false,
  metaChunk: true,
  // Links to files of the repository, outside the site.
  ignoreDeadLinks: [/^(\.\/)?\.\.\//],
  themeConfig: {
    search: { provider: 'local' },
    sidebar: [
      {
        text: 'Start',
        items: listed([
          ['The first hour', 'first-hour'],
          ['Guides', 'guides/'],
          ['Console', 'console'],
          ['Migrate from Medplum', 'moving-from-medplum'],
          ['Performance', 'performance'],
        ]),
      },
      {
        text: 'Build bots',
        items: listed([
          ['Bots', 'bots'],
          ['HL7v2 in and out', 'guides/hl7v2'],
          ['Agents', 'guides/agents'],
          ['Web hooks', 'guides/web-hooks'],
          ['Forms and documents', 'guides/forms'],
          ['Automation', 'guides/automation'],
          ['Calling other services', 'guides/other-services'],
          ['Topic subscriptions', 'guides/topics'],
          ['Streaming answers', 'guides/streaming'],
          ['Tools for language models', 'guides/language-models'],
          ['CDS Hooks', 'guides/cds-hooks'],
          ['Releases of bots', 'guides/releases'],
        ]),
      },
      {
        text: 'Store and search',
        items: listed([
          ['The API', 'guides/api'],
          ['Guarantees', 'promises'],
          ['Search', 'guides/search'],
          ['GraphQL', 'guides/graphql'],
          ['Bulk export and import', 'guides/bulk-data'],
          ['Terminology and profiles', 'guides/terminology'],
        ]),
      },
      {
        text: 'Secure',
        items: listed([
          ['Access policies', 'guides/access-policies'],
          ['Sign-in', 'guides/sign-in'],
          ['SMART apps', 'guides/smart-apps'],
          ['Identity providers', 'guides/identity-providers'],
          ['Security', 'security'],
          ['OAuth security', 'oauth-security'],
        ]),
      },
      {
        text: 'Operate',
        items: listed([
          ['Deploy', 'deploy'],
          ['Operate the service', 'operate/README'],
          ['Scaling', 'scale'],
          ['Administration', 'guides/administration'],
          ['Troubleshooting', 'troubleshooting'],
        ]),
      },
      {
        text: 'Reference',
        items: listed([
          ['Settings', 'reference/settings'],
          ['Project settings', 'projects'],
          ['Limits', 'reference/limits'],
          ['Error codes', 'reference/errors'],
          ['Operations', 'reference/operations'],
          ['Operations from guides and Medplum', 'operations'],
          ['Search parameters', 'reference/search-parameters'],
          ['Metrics', 'reference/metrics'],
        ]),
      },
      {
        text: 'Contribute',
        items: listed([
          ['Concepts', 'concepts'],
          ['The life of a request', 'lifecycle'],
          ['Data model', 'data-model'],
          ['Conformance', 'conformance'],
          ['Release', 'releasing'],
        ]),
      },
    ],
  },
})
