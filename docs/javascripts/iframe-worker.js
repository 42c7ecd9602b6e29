// Search works in pages that are opened from a folder, too: browsers load no worker there, so a hidden
// frame runs the worker's script. mkdocs-material's plugin `offline` asks for a file of this name.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      this.inside = this.frame.contentWindow;
      const script = this.frame.contentDocument.createElement("script");
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((done, failed) => {
        script.onload = done;
        script.onerror = () => failed(new Error(`${url} could not be loaded`));
      });
      script.src = new URL(url, location.href).href;
      this.frame.contentDocument.head.append(script);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
